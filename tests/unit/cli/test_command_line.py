"""What a user sees who asks for help, the version, or something that cannot be."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omnistage_cli.__main__ import app

ROOT = Path(__file__).parents[3]
PIPELINE = ROOT / "deploy" / "pipelines" / "simulated-omni.yaml"


def omnistage(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs the program itself."""
    return subprocess.run(
        [sys.executable, "-m", "omnistage_cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )


def test_the_version_is_that_of_the_distribution() -> None:
    result = CliRunner().invoke(app, ["--version"])

    assert (result.exit_code, result.output) == (0, f"omnistage {version('omnistage')}\n")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_help_names_every_command_and_shows_examples(arguments: list[str]) -> None:
    output = CliRunner().invoke(app, arguments).output

    for words in ("up", "demo", "validate", "render", "Examples:", "omnistage demo"):
        assert words in output


@pytest.mark.parametrize("command", ["up", "demo", "validate", "render"])
def test_help_of_a_command_shows_examples(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "120"})

    assert result.exit_code == 0
    assert f"omnistage {command}" in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["up", "missing.yaml"], 2, "error: missing.yaml: cannot be read"),
        (["up", str(PIPELINE), "--pipeline", "other"], 1, "there is no InferencePipeline `other`"),
        (["up", str(PIPELINE), "--set", "nonsense"], 1, "is not `path=value`"),
        (["up", str(PIPELINE), "--port", "70000"], 2, "65535"),
        (["up", str(PIPELINE), "--host", "192.0.2.1"], 1, "--host"),
        (["up", str(PIPELINE), "--port", "0", "--state-dir", "/proc/x"], 1, "--state-dir"),
        (["demo", str(PIPELINE), "--question", "missing.wav"], 1, "missing.wav"),
        (["upp"], 2, "upp"),
    ],
)
def test_what_cannot_be_done_is_said_on_one_channel_with_a_code(
    arguments: list[str], code: int, words: str
) -> None:
    done = omnistage(*arguments)

    assert done.returncode == code
    assert words in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_demo_outside_a_clone_says_what_to_do(tmp_path: Path) -> None:
    done = omnistage("demo", cwd=tmp_path)

    assert done.returncode == 1
    assert "clone of the repository" in done.stderr
