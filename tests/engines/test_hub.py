"""Models of the hub come from its local cache, and a missing one says what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def hub_cache(tmp_path: Path) -> Path:
    """A hub cache with one snapshot of `org/toy` in it."""
    repository = tmp_path / "models--org--toy"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("c0ffee" * 6 + "c0ff", encoding="utf-8")
    snapshot = repository / "snapshots" / ("c0ffee" * 6 + "c0ff")
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}", encoding="utf-8")
    return tmp_path


def command(hub_cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "omnistage_stage.weights", *arguments],
        env=os.environ | {"HF_HUB_CACHE": str(hub_cache), "HF_HUB_OFFLINE": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("verb", ["prepare", "path"])
def test_a_cached_snapshot_is_found_without_a_network(hub_cache: Path, verb: str) -> None:
    done = command(hub_cache, verb, "hf://org/toy")

    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / "config.json").is_file()


@pytest.mark.parametrize("verb", ["prepare", "verify", "path"])
def test_a_snapshot_that_is_not_cached_names_the_remedies(hub_cache: Path, verb: str) -> None:
    done = command(hub_cache, verb, "hf://org/toy@v2")

    assert done.returncode == 1
    assert "hf://org/toy@v2 is neither in the local hub cache nor to be had" in done.stderr
    assert "HF_TOKEN" in done.stderr
    assert "file:///folder" in done.stderr
