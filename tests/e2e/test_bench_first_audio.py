"""`omnistage bench first-audio` listens to real processes and prints what it promises."""

import json
import subprocess
import sys
from pathlib import Path

from fakes.deployment import SIMULATED_OMNI


def bench(folder: Path, file: Path) -> "subprocess.CompletedProcess[str]":
    """Runs the command with one answer each way."""
    options = ("--requests", "1", "--json")
    return subprocess.run(
        [sys.executable, "-m", "omnistage_cli", "bench", "first-audio", str(file), *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_streaming_brings_the_first_sound_in_a_fraction_of_the_time(tmp_path: Path) -> None:
    done = bench(tmp_path, SIMULATED_OMNI.with_name("simulated-streaming.yaml"))

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["answer_seconds"] == 10
    assert report["minimum_ms"] <= report["streamed_ms"]
    assert report["unstreamed_minimum_ms"] <= report["unstreamed_ms"]
    assert report["ratio"] == round(report["streamed_ms"] / report["unstreamed_ms"], 4)
    assert report["ratio"] < 0.2


def test_a_pipeline_without_streams_is_refused(tmp_path: Path) -> None:
    done = bench(tmp_path, SIMULATED_OMNI)

    assert done.returncode != 0
    assert "simulated-streaming.yaml" in done.stderr
