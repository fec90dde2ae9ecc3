"""The command line of a stage process."""

from pathlib import Path

import pytest

from omnistage_common.addresses import Address
from omnistage_stage.engines.protocol import Gang
from omnistage_stage.settings import StageSettings, parse_settings

NEEDED = ["--assignment", "thinker.json", "--listen", "127.0.0.1:7001"]


def test_what_is_needed_is_enough() -> None:
    assert parse_settings(NEEDED) == StageSettings(
        assignment=Path("thinker.json"),
        replica=None,
        listen=Address(host="127.0.0.1", port=7001),
        metrics=None,
        gang=None,
        exit_with_parent=False,
        log_level="INFO",
    )


def test_everything_can_be_said() -> None:
    more = ["--replica", "thinker-3", "--metrics", "[::1]:9001", "--exit-with-parent"]
    gang = ["--gang-leader", "thinker-3-0.thinker", "--gang-rank", "1"]

    settings = parse_settings([*NEEDED, *more, *gang, "--log-level", "DEBUG"])

    assert settings.replica == "thinker-3"
    assert settings.metrics == Address(host="::1", port=9001)
    assert settings.gang == Gang(leader="thinker-3-0.thinker", rank=1)
    assert settings.exit_with_parent
    assert settings.log_level == "DEBUG"


@pytest.mark.parametrize("half", [["--gang-leader", "thinker-3-0"], ["--gang-rank", "1"]])
def test_a_place_in_a_gang_is_said_whole(
    half: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_settings([*NEEDED, *half])

    assert ended.value.code == 2
    assert "--gang-leader and --gang-rank go together" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--assignment", "--listen"])
def test_without_one_of_them_usage_is_printed(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    at = NEEDED.index(option)

    with pytest.raises(SystemExit) as ended:
        parse_settings(NEEDED[:at] + NEEDED[at + 2 :])

    assert ended.value.code == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--listen", "--metrics"])
def test_an_address_in_another_form_is_refused_with_an_example(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_settings([*NEEDED, option, "7001"])

    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert option in said
    assert "'7001' is not HOST:PORT, e.g. 127.0.0.1:8000" in said


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(SystemExit):
        parse_settings([*NEEDED, "--log-level", "LOUD"])


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_settings(["--help"])

    assert ended.value.code == 0
    assert "python -m omnistage_stage --assignment thinker.json" in capsys.readouterr().out
