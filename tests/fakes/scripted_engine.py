"""An engine whose every run waits for the test to say how it ends."""

import asyncio
from collections.abc import Callable

from omnistage_stage.engines.protocol import EngineRequest, EngineResult, Outputs

__all__ = ["Run", "ScriptedEngine"]

_ENOUGH_S = 10.0


class Run:
    """One call of `run`, from the test's side."""

    def __init__(self, request: EngineRequest, outputs: Outputs) -> None:
        self.request = request
        self.outputs = outputs
        self.cancelled = False
        self.outcome: asyncio.Future[EngineResult] = asyncio.get_running_loop().create_future()

    def finish(self, result: EngineResult | None = None) -> None:
        """Has it return."""
        self.outcome.set_result(result or EngineResult())

    def fail(self, error: Exception) -> None:
        """Has it raise."""
        self.outcome.set_exception(error)

    def drop(self) -> None:
        """Has it end as one that waited for something which was cancelled elsewhere."""
        self.outcome.cancel()


class ScriptedEngine:
    """Loads and probes at once; runs are kept by request id until the test has seen them."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.running = 0
        self.probes = 0
        self._changed = asyncio.Event()

    async def load(self) -> None:
        """Has nothing to load."""

    async def probe(self) -> None:
        """Counts."""
        self.probes += 1

    async def run(self, request: EngineRequest, outputs: Outputs) -> EngineResult:
        """Ends as the test says."""
        run = self.runs[request.id] = Run(request, outputs)
        self.running += 1
        self._changed.set()
        try:
            return await run.outcome
        except asyncio.CancelledError:
            run.cancelled = True
            raise
        finally:
            self.running -= 1
            self._changed.set()

    async def close(self) -> None:
        """Has nothing to let go of."""

    async def started(self, request_id: str) -> Run:
        """The run of a request, once there is one."""
        await self.until(lambda: request_id in self.runs)
        return self.runs[request_id]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until a run began or ended and made the condition true."""
        async with asyncio.timeout(_ENOUGH_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()
