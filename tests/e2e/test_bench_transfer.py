"""`omnistage bench transfer` moves tensors between real processes, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest

from omnistage_cli.bench.transfer.methods import Method, lacking
from omnistage_common.payloads import INLINE_LIMIT
from omnistage_common.tensors import SHARED_MEMORY_FOLDER

SMALL: Final = 4096
LARGE: Final = 2 * 1024 * 1024
THERE: Final = {method.value for method in Method if not lacking(method)}
ROW_KEYS: Final = {"method", "bytes", "p50_ms", "gb_per_s"}
RATIO_KEYS: Final = {
    "shared_memory_to_copy",
    "mooncake_to_socket",
    "mooncake_to_grpc_unary",
    "hand_off_ms",
}
StartBench = Callable[..., "Watched"]
ENOUGH_S: Final = 60


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "omnistage_cli", "bench", "transfer", *options]


def segments_of(pids: set[int]) -> list[Path]:
    """Shared memory that those processes have left."""
    return [each for pid in pids for each in SHARED_MEMORY_FOLDER.glob(f"omnistage-{pid}-*")]


class Watched:
    """The command, and every process that it starts."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._process = subprocess.Popen(
            command(*options),
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder), "XDG_STATE_HOME": str(folder / "state")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pids: set[int] = set()

    def until_said(self, words: str) -> str:
        """What it says until it says this."""
        assert self._process.stderr is not None
        said = ""
        for line in self._process.stderr:
            said += line
            self.look()
            if words in line:
                return said
        raise AssertionError(f"it ended without {words!r}: {said}")

    def look(self) -> None:
        """Notes its children."""
        if self._process.poll() is None:
            children = psutil.Process(self._process.pid).children(recursive=True)
            self.pids |= {child.pid for child in children}

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the command only."""
        self._process.send_signal(number)

    def ended(self) -> tuple[int, str, str]:
        """Exit status, and what was not read of both outputs."""
        output, errors = self._process.communicate(timeout=ENOUGH_S)
        return self._process.returncode, output, errors

    def kill(self) -> None:
        """Makes sure that it has ended. Idempotent."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[StartBench]:
    """Starts the command; it is ended with the test."""
    started: list[Watched] = []

    def start(*options: str) -> Watched:
        started.append(Watched(tmp_path, *options))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def test_every_method_has_a_row_and_nothing_is_left(watched: StartBench, tmp_path: Path) -> None:
    bench = watched("--size", str(SMALL), "--size", str(LARGE), "--rounds", "1", "--json")
    bench.until_said("2 MiB by")
    bench.until_said("hand-off")
    code, output, errors = bench.ended()

    assert code == 0, errors
    report = json.loads(output)
    assert {row["method"] for row in report["rows"]} == THERE
    assert report["left_out"].keys() == {method.value for method in Method} - THERE
    assert all(report["left_out"].values())
    for row in report["rows"]:
        assert row.keys() >= ROW_KEYS
        assert 0 < row["best_ms"] <= row["p50_ms"]
        assert row["gb_per_s"] == pytest.approx(row["bytes"] / row["p50_ms"] / 1e6, rel=0.05)
        inline = row["method"] == "inline"
        assert row["bytes"] <= INLINE_LIMIT or not inline
    assert report["ratios"].keys() >= RATIO_KEYS
    assert report["ratios"]["hand_off_ms"] > 0
    assert report["cores"] == os.cpu_count()

    assert len(bench.pids) >= 3
    assert not any(map(psutil.pid_exists, bench.pids))
    assert segments_of(bench.pids) == []
    assert list(tmp_path.glob("omnistage-bench-*")) == []


@pytest.mark.parametrize("words", ["1 MiB by", "hand-off: "], ids=["between processes", "stages"])
def test_an_interrupt_ends_everything(watched: StartBench, tmp_path: Path, words: str) -> None:
    methods = ("shared_memory", "stream", "socket") if "MiB" in words else ("hand_off",)
    options = [word for name in methods for word in ("--method", name)]
    bench = watched("--size", "1MiB", "--size", "16MiB", "--rounds", "1000", *options)
    bench.until_said(words)

    bench.send(signal.SIGINT)
    code, output, errors = bench.ended()

    assert code == 1
    assert output == ""
    assert "Traceback" not in errors
    assert bench.pids
    assert not any(map(psutil.pid_exists, bench.pids))
    assert segments_of(bench.pids) == []
    assert list(tmp_path.glob("omnistage-bench-*")) == []


def test_a_command_that_is_killed_takes_its_processes_along(watched: StartBench) -> None:
    bench = watched("--size", "1MiB", "--rounds", "1000", "--method", "shared_memory")
    bench.until_said("1 MiB by")

    bench.send(signal.SIGKILL)
    bench.ended()

    processes = [psutil.Process(pid) for pid in bench.pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(processes, timeout=ENOUGH_S)
    assert alive == []
    assert segments_of(bench.pids) == []
