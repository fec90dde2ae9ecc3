"""The run directory: what one run of the local runtime leaves for people and for its processes.

    plan.json           the resolved plan, as the gateway reads it
    endpoints.json      where the replicas listen, as the gateway reads it
    stage-<name>.json   what the replicas of a stage do, as they read it
    logs/<name>.log     what each process wrote; the previous run's as <name>.log.1
    lock                held while the run lasts

A directory that is named (`--state-dir`) is used again and again, by one run at a time; otherwise
each run has its own. Nothing here knows what a log line means.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from omnistage_common.errors import SetupError
from omnistage_common.ids import PipelineName, ReplicaId, StageName
from omnistage_common.pipeline.assignments import assignment_of, encode_assignment
from omnistage_common.pipeline.plan import PipelinePlan, encode_plan

__all__ = ["Endpoint", "RunDirectory", "default_directory", "last_lines"]

_TAIL_BYTES: Final = 64 * 1024


class Endpoint(Struct, frozen=True, kw_only=True):
    """Where one stage replica listens."""

    stage: StageName
    replica: ReplicaId
    address: str
    """`host:port` of its gRPC service."""


def default_directory(pipeline: PipelineName, environment: Mapping[str, str]) -> Path:
    """`$XDG_STATE_HOME/omnistage/<pipeline>-<pid>`; `~/.local/state` where that is not set."""
    home = environment.get("XDG_STATE_HOME", "")
    root = Path(home) if home else Path.home() / ".local" / "state"
    return root / "omnistage" / f"{pipeline}-{os.getpid()}"


class RunDirectory:
    """The files of one run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plan = root / "plan.json"
        self.endpoints = root / "endpoints.json"
        self._logs = root / "logs"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the directory and keeps other runs out of it.

        Raises:
            SetupError: Another run uses it, or it cannot be written.
        """
        try:
            self._logs.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = (self.root / "lock").open("w", encoding="ascii")
        except OSError as error:
            raise SetupError(
                f"cannot write to {self.root}: {error.strerror}; choose another with --state-dir",
                field="--state-dir",
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise SetupError(
                    f"{self.root} is used by a run that has not ended; "
                    "stop it or choose another with --state-dir",
                    field="--state-dir",
                ) from error
            yield

    def write(self, plan: PipelinePlan, endpoints: tuple[Endpoint, ...]) -> None:
        """Writes what the processes read."""
        self.plan.write_bytes(encode_plan(plan))
        for stage in plan.stages:
            assignment = encode_assignment(assignment_of(plan, stage.name))
            self.assignment(stage.name).write_bytes(assignment)
        self.endpoints.write_bytes(msgspec.json.encode({"replicas": endpoints}))

    def assignment(self, stage: StageName) -> Path:
        """What the replicas of a stage read."""
        return self.root / f"stage-{stage}.json"

    def new_log(self, name: str) -> Path:
        """The log of a process for this run; the previous run's is kept beside it."""
        path = self._logs / f"{name}.log"
        if path.exists():
            path.replace(path.with_suffix(".log.1"))
        path.touch(mode=0o600)
        return path


def last_lines(path: Path, *, start: int = 0, count: int = 20) -> tuple[str, ...]:
    """The last lines of a log.

    Args:
        path: The log.
        start: Byte from which on it counts; what stands before is of an earlier life.
        count: Lines at most.
    """
    with path.open("rb") as log:
        end = log.seek(0, os.SEEK_END)
        log.seek(max(start, end - _TAIL_BYTES))
        text = log.read().decode("utf-8", errors="replace")
    return tuple(line for line in text.splitlines() if line.strip())[-count:]
