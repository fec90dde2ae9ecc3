"""`omnistage render` shows the plan and where each value came from."""

import json
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from omnistage_cli.commands.plan_text import plan_lines, plan_rows
from omnistage_cli.commands.render import render
from omnistage_common.pipeline.plan import Origin, decode_plan
from unit.common.pipeline.examples import VALID, bent, plan_of

APP = typer.Typer()
APP.command()(render)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.yaml"
    path.write_text(VALID, encoding="utf-8")
    return path


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(APP, [str(word) for word in words])


def test_the_plan_is_yaml_with_the_origin_of_each_value_behind_it(file: Path) -> None:
    done = run(file, "--set", "stages.thinker.engineArgs.height=8")

    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "name: chat  # pipeline"
    assert "      steps: 6  # runtime" in lines
    assert "      width: 3  # pipeline" in lines
    assert "      height: 8  # command line" in lines
    assert "    replicas: 1  # built-in" in lines
    assert "    model: package://small  # template" in lines
    assert "edges:  # template" in lines


def test_the_yaml_reads_back_as_the_plan(file: Path) -> None:
    shown = yaml.safe_load(run(file).stdout)

    plan = json.loads(run(file, "--format", "json").stdout)
    del plan["origins"]
    assert shown == plan


@pytest.mark.parametrize(
    "value",
    ['"yes"', '"8"', '"# no comment"', '"a: b"', '"two\\nlines"', "null", "1.5", '""', "[]", "{}"],
)
def test_values_that_yaml_could_misread_are_quoted(value: str) -> None:
    plan = plan_of(VALID, f"stages.thinker.engineArgs.tricky={value}")

    text = "\n".join(f"{line.text}  # {line.origin}" for line in plan_lines(plan))

    args = yaml.safe_load(text)["stages"][0]["engine_args"]
    assert args["tricky"] == yaml.safe_load(value)


def test_a_value_changed_at_depth_says_so_where_it_stands() -> None:
    plan = plan_of(VALID, "stages.thinker.engineArgs.outputs.text.text=new")

    origins = {line.text.strip(): line.origin for line in plan_lines(plan)}
    assert origins["outputs:"] is Origin.TEMPLATE
    assert origins["text: new"] is Origin.COMMAND_LINE


def test_json_is_the_plan_itself(file: Path) -> None:
    done = run(file, "--format", "json")

    assert decode_plan(done.stdout.encode()) == plan_of()


def test_the_table_has_a_row_for_each_value() -> None:
    rows = {row.path: (row.value, row.origin) for row in plan_rows(plan_of())}

    assert rows["stages.thinker.engine_args.steps"] == ("6", Origin.RUNTIME)
    assert rows["stages.talker.limits.max_queued"] == ("256", Origin.BUILT_IN)
    assert rows["stages.thinker.produces"][1] is Origin.TEMPLATE
    assert rows["timeouts.request"] == ("60.0", Origin.PIPELINE)


def test_the_table_is_shown(file: Path) -> None:
    done = run(file, "--format", "table")

    assert done.exit_code == 0
    assert "timeouts.request" in done.stdout


def test_there_is_no_colour_where_nobody_sees_it(file: Path) -> None:
    assert "\x1b" not in run(file).stdout


@pytest.mark.parametrize("variable", ["NO_COLOR"])
def test_colour_is_left_out_when_asked(
    file: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in run(file).stdout

    monkeypatch.setenv(variable, "1")
    assert "\x1b[" not in run(file).stdout


def test_problems_go_to_standard_error_and_there_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(bent(("mode: Full", "mode: Ful"), ("60s", "soon")), encoding="utf-8")

    done = run(path)

    assert done.exit_code == 1
    assert done.stdout == ""
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == [
        f"{path}:27",
        f"{path}:51",
    ]


def test_warnings_do_not_keep_the_plan_back(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        bent(("      engineArgs: {width: 3}", "      autoscaling: {maxReplicas: 3}")),
        encoding="utf-8",
    )

    done = run(path)

    assert done.exit_code == 0
    assert done.stderr.startswith(f"warning: {path}:50: spec.stages[thinker].autoscaling: ")
    assert yaml.safe_load(done.stdout)["name"] == "chat"


def test_a_bad_override_is_named(file: Path) -> None:
    done = run(file, "--set", "stages.thinker.replica=2")

    assert done.exit_code == 1
    assert done.stderr == (
        "--set stages.thinker.replica: unknown field (did you mean `replicas`?)\n"
    )


def test_a_file_that_cannot_be_read_exits_with_two(tmp_path: Path) -> None:
    done = run(tmp_path / "none.yaml")

    assert done.exit_code == 2
    assert done.stderr == f"{tmp_path / 'none.yaml'}: cannot be read: No such file or directory\n"


def test_a_pipeline_is_chosen_by_name(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        VALID + "---\n" + VALID.split("---\n")[2].replace("chat", "other"), encoding="utf-8"
    )

    assert yaml.safe_load(run(path, "--pipeline", "other").stdout)["name"] == "other"
    done = run(path)
    assert done.exit_code == 1
    assert done.stderr == "pipeline: there are several pipelines (name one of chat, other)\n"
