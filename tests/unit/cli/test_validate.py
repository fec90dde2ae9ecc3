"""`omnistage validate` prints every problem at once, one line each."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from omnistage_cli.commands.validate import validate
from unit.common.pipeline.examples import VALID, bent, plan_of

APP = typer.Typer()
APP.command()(validate)


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(APP, [str(word) for word in words])


def written(folder: Path, text: str, name: str = "p.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_valid_file_is_summed_up_in_a_line(tmp_path: Path) -> None:
    done = run(written(tmp_path, VALID))

    assert done.exit_code == 0
    assert done.stdout == (
        f"chat: valid, 2 stages (thinker, talker), revision {plan_of().revision}\n"
    )


def test_every_problem_is_a_line_and_the_last_one_counts_them(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        bent(
            ("to: talker", "to: talkr"),
            ("      engineArgs: {width: 3}", "      autoscaling: {maxReplicas: 3}"),
            ("request: 60s", "request: 0s"),
        ),
    )

    done = run(file)

    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        (
            f"{file}:20: spec.stages[talker]: can never run: it takes nothing from the request and no "
            "edge leads to it (add `consumes` or an edge)"
        ),
        f"{file}:27: spec.edges[0].to: there is no stage `talkr` (did you mean `talker`?)",
        (
            f"warning: {file}:50: spec.stages[thinker].autoscaling: needs a cluster; 1 replica will "
            "run (write `replicas` for another number)"
        ),
        (
            f"{file}:51: spec.timeouts.request: is `0s`; no request could be served (write a longer "
            "time, e.g. `120s`)"
        ),
        "3 errors, 1 warning",
    ]


def test_warnings_alone_are_shown_and_do_not_fail(tmp_path: Path) -> None:
    file = written(
        tmp_path, bent(("      engineArgs: {width: 3}", "      autoscaling: {maxReplicas: 3}"))
    )

    done = run(file)

    assert done.exit_code == 0
    first, second = done.stdout.splitlines()
    assert first.startswith("warning: ")
    assert second.startswith("chat: valid, ")


def test_what_one_file_refers_to_may_stand_in_another(tmp_path: Path) -> None:
    parts = VALID.split("---\n")
    files = [written(tmp_path, part, f"{number}.yaml") for number, part in enumerate(parts)]

    assert run(*files).exit_code == 0
    assert run(files[2]).exit_code == 1


def test_a_template_alone_is_valid(tmp_path: Path) -> None:
    done = run(written(tmp_path, VALID.split("---\n")[0]))

    assert done.exit_code == 0
    assert done.stdout == "1 resource valid, no pipeline among them\n"


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_file_that_cannot_be_read_exits_with_two(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "p.yaml"
    if content is not None:
        path.write_bytes(content)

    done = run(written(tmp_path, VALID, "good.yaml"), path)

    assert done.exit_code == 2
    assert done.stdout == ""
    assert str(path) in done.stderr


def test_lines_are_not_broken_however_narrow_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")

    done = run(written(tmp_path, bent(("to: talker", "to: talkr"))))

    assert len(done.stdout.splitlines()) == 3


def test_square_brackets_of_a_field_are_not_taken_for_markup(tmp_path: Path) -> None:
    done = run(written(tmp_path, bent(("      engineArgs: {width: 3}", "      replicas: two"))))

    assert "spec.stages[thinker].replicas: must be a whole number, not `two`" in done.stdout
