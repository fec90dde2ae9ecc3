"""Whoever makes a plan from a file is told what will not be as the file says."""

from pathlib import Path

import pytest

from omnistage_cli.commands.planning import plan_from
from unit.common.pipeline.examples import VALID, bent, plan_of


def test_warnings_are_shown_and_the_plan_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(bent(("      engineArgs: {width: 3}", "      autoscaling: {maxReplicas: 2}")))

    plan = plan_from(file, None, ())

    assert plan.name == "chat"
    shown = capsys.readouterr()
    assert "warning: " in shown.err
    assert "spec.stages[thinker].autoscaling" in shown.err
    assert shown.out == ""


def test_a_file_without_fault_is_passed_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(VALID)

    assert plan_from(file, None, ()).revision == plan_of().revision
    assert capsys.readouterr() == ("", "")
