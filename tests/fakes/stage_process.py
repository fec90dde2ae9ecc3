"""A real stage process, as a test starts, watches and ends it."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fakes.plans import plan_of_stages
from omnistage_common.ids import EngineName, OutputName, StageName
from omnistage_common.payloads import PayloadKind
from omnistage_common.pipeline.assignments import assignment_of, encode_assignment
from omnistage_common.pipeline.plan import (
    EdgePlan,
    Limits,
    PipelinePlan,
    ProducePlan,
    Timeouts,
    received_by,
)
from omnistage_common.tensors import SHARED_MEMORY_FOLDER
from omnistage_stage.engines.protocol import Gang

__all__ = ["STAGE", "StageProcess", "free_port", "stage_plan"]

STAGE = "thinker"
_ENOUGH_S = 30.0


def stage_plan(
    engine_args: Mapping[str, Any],
    produces: Mapping[str, PayloadKind],
    *,
    engine: str = "simulated",
    max_running: int = 2,
    max_queued: int = 8,
    drain: float = 30.0,
    edges: tuple[EdgePlan, ...] = (),
) -> PipelinePlan:
    """A plan of the one stage `STAGE`; its edges may lead anywhere."""
    plan = plan_of_stages({STAGE: {}})
    stage = msgspec.structs.replace(
        plan.stages[0],
        engine=EngineName(engine),
        engine_args=dict(engine_args),
        produces=tuple(
            ProducePlan(name=OutputName(name), kind=kind) for name, kind in produces.items()
        ),
        limits=Limits(max_running=max_running, max_queued=max_queued, slab_bytes=8 << 20),
        receives=received_by(StageName(STAGE), edges),
    )
    timeouts = Timeouts(request=30.0, drain=drain)
    return msgspec.structs.replace(plan, stages=(stage,), edges=edges, timeouts=timeouts)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class StageProcess:
    """`python -m omnistage_stage` with an assignment of the test's own.

    Args:
        plan: Has the stage `STAGE`.
        folder: For the assignment's file.
        python: The interpreter, of an environment that may have more engines.
        port: Where it listens; a free one unless named.
        gang: Which one of its replica it is, where that has several processes.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        folder: Path,
        *,
        python: Path | None = None,
        port: int = 0,
        gang: Gang | None = None,
    ) -> None:
        port, metrics_port = port or free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        self.metrics_url = f"http://127.0.0.1:{metrics_port}/metrics"
        path = folder / f"assignment-{port}.json"
        path.write_bytes(encode_assignment(assignment_of(plan, StageName(STAGE))))
        where = ["--listen", self.address, "--metrics", f"127.0.0.1:{metrics_port}"]
        if gang is not None:
            where += ["--gang-leader", gang.leader, "--gang-rank", str(gang.rank)]
        self._process = subprocess.Popen(
            [
                *(str(python or sys.executable), "-m", "omnistage_stage", "--exit-with-parent"),
                *("--assignment", str(path), *where),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[str] = []
        self._said = threading.Condition()
        self._silent = False
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def segments(self) -> list[Path]:
        """Its segments of shared memory."""
        return list(SHARED_MEMORY_FOLDER.glob(f"omnistage-{self._process.pid}-*"))

    async def said(self, event: str) -> dict[str, Any]:
        """The first line of its log about an event, once it is there.

        Raises:
            AssertionError: It ended without saying so.
        """
        await asyncio.to_thread(self._wait_for, event)
        found = self._find(event)
        assert found is not None, "\n".join(self.log)
        return found

    async def exit_code(self) -> int:
        """How it ended, once it did."""
        code = await asyncio.to_thread(self._process.wait, _ENOUGH_S)
        await asyncio.to_thread(self._listener.join)
        return code

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self._process.send_signal(number)

    def end(self) -> None:
        """Makes sure that it has ended and left nothing behind."""
        self._process.kill()
        self._process.wait()
        self._listener.join()
        if self._process.stderr is not None:
            self._process.stderr.close()
        for segment in self.segments:
            segment.unlink()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._said:
                self.log.append(line.rstrip())
                self._said.notify_all()
        with self._said:
            self._silent = True
            self._said.notify_all()

    def _wait_for(self, event: str) -> None:
        with self._said:
            self._said.wait_for(lambda: self._silent or self._find(event) is not None, _ENOUGH_S)

    def _find(self, event: str) -> dict[str, Any] | None:
        lines = (json.loads(line) for line in self.log if line.startswith("{"))
        return next((line for line in lines if line["event"] == event), None)
