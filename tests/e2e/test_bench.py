"""`omnistage bench overhead` measures real processes and prints what it promises."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from fakes.deployment import SIMULATED_OMNI

RUN_KEYS: Final = {"clients", "streamed", "p50_ms", "p95_ms", "p99_ms", "rps"}
PROCESSES: Final = {"gateway", "thinker", "talker", "code2wav", "load"}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The JSON object of a small measurement."""
    done = bench(tmp_path_factory.mktemp("bench"), "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def bench(folder: Path, *options: str, file: Path = SIMULATED_OMNI) -> Any:
    """Runs the command with little load."""
    little = ("--clients", "1", "--clients", "4", "--requests", "40", "--rounds", "1")
    return subprocess.run(
        [sys.executable, "-m", "omnistage_cli", "bench", "overhead", str(file), *little, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_every_load_is_measured_whole_and_streamed(report: dict[str, Any]) -> None:
    loads = [(run["clients"], run["streamed"]) for run in report["runs"]]

    assert loads == [(1, False), (1, True), (4, False), (4, True)]
    for run in report["runs"]:
        assert run.keys() >= RUN_KEYS
        assert 0 < run["p50_ms"] <= run["p95_ms"] <= run["p99_ms"]
        assert run["rps"] > 0
        assert run["cpu_us"].keys() == PROCESSES


def test_memory_start_and_idleness_are_told(report: dict[str, Any]) -> None:
    assert 20 < report["memory_mb"]["stage"] < report["memory_mb"]["gateway"] < 120
    assert report["ready_s"] > 0
    assert 0 <= report["idle_cpu_percent"] < 50


def test_a_pipeline_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    done = bench(tmp_path, file=tmp_path / "absent.yaml")

    assert done.returncode != 0
    assert "absent.yaml" in done.stderr
    assert done.stdout == ""
