"""What the platform costs where nothing computes: the benchmark `omnistage bench overhead`.

It runs `simulated-omni` (three stages: 16 text tokens, 16 codec frames, one WAV of 15 kB, one step
per token, no compute) with the real gateway and the real stage services, loads it from one more
process, and measures latency, throughput, memory, time to ready, and CPU time while idle. All of it
shares this machine's cores, the load included.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import psutil
from msgspec import Struct

from omnistage_cli.bench.children import run_child
from omnistage_cli.bench.orders import LoadOrder, LoadResult
from omnistage_cli.runtime import Site
from omnistage_common.pipeline.plan import PipelinePlan

__all__ = ["Memory", "Overhead", "OverheadOptions", "OverheadReport", "OverheadRun"]

IDLE_SECONDS: Final = 5.0
_MB: Final = 1e6


class OverheadOptions(Struct, frozen=True, kw_only=True):
    """How much to measure."""

    clients: tuple[int, ...] = (1, 8, 32)
    requests: int = 2000
    """Requests per round at 8 clients and more; a fifth of it at 1."""
    rounds: int = 3


class OverheadRun(Struct, frozen=True, kw_only=True):
    """One load."""

    clients: int
    streamed: bool
    p50_ms: float
    p95_ms: float
    p99_ms: float
    rps: float
    """Median of the rounds."""
    rps_of_rounds: tuple[float, ...]
    cpu_us: dict[str, float]
    """CPU time per request by process, in microseconds."""


class Memory(Struct, frozen=True, kw_only=True):
    """Resident memory in MB (10^6 bytes) before any load; of the largest stage."""

    gateway: float
    stage: float


class OverheadReport(Struct, frozen=True, kw_only=True):
    """All that was measured."""

    runs: tuple[OverheadRun, ...]
    memory_mb: Memory
    memory_after_mb: Memory
    """The same after all the load."""
    ready_s: float
    """From starting the first process until every stage had passed its probe and the gateway was
    ready."""
    idle_cpu_percent: float
    """CPU time of all processes together while nobody asks, in per cent of one core."""
    cores: int


class Overhead:
    """A session of the local runtime that measures."""

    def __init__(
        self, plan: PipelinePlan, options: OverheadOptions, progress: Callable[[str], None]
    ) -> None:
        self.plan = plan
        self._options = options
        self._progress = progress
        self._started = time.perf_counter()
        self.report: OverheadReport | None = None

    async def __call__(self, site: Site) -> None:
        """Measures the running pipeline."""
        ready = time.perf_counter() - self._started
        processes = dict(_named_processes(self.plan))
        memory = _memory(processes)
        self._progress(f"idle for {IDLE_SECONDS:g} s")
        idle = await _idle_cpu(processes)
        runs = [
            await self._run(site, processes, clients=clients, streamed=streamed)
            for clients in self._options.clients
            for streamed in (False, True)
        ]
        self.report = OverheadReport(
            runs=tuple(runs),
            memory_mb=memory,
            memory_after_mb=_memory(processes),
            ready_s=round(ready, 3),
            idle_cpu_percent=round(idle, 2),
            cores=os.cpu_count() or 1,
        )

    async def _run(
        self, site: Site, processes: dict[str, psutil.Process], *, clients: int, streamed: bool
    ) -> OverheadRun:
        requests = self._options.requests if clients > 1 else self._options.requests // 5
        how = "streamed" if streamed else "whole"
        self._progress(f"{clients} clients, {how}: {self._options.rounds} x {requests} requests")
        order = LoadOrder(
            url=f"{site.url}/v1/chat/completions",
            body=_body(self.plan, streamed=streamed),
            clients=clients,
            requests=requests,
            rounds=self._options.rounds,
            warmup=max(20, requests // 10),
        )
        before = _cpu(processes)
        result = await run_child("omnistage_cli.bench.load", order, LoadResult)
        sent = order.warmup + order.requests * order.rounds
        cpu = {
            name: round((after - before[name]) / sent * 1e6, 1)
            for name, after in _cpu(processes).items()
        }
        return OverheadRun(
            clients=clients,
            streamed=streamed,
            p50_ms=result.p50_ms,
            p95_ms=result.p95_ms,
            p99_ms=result.p99_ms,
            rps=result.rps,
            rps_of_rounds=result.rps_of_rounds,
            cpu_us={**cpu, "load": result.cpu_us},
        )


def _body(plan: PipelinePlan, *, streamed: bool) -> dict[str, Any]:
    return {
        "model": plan.served_names[0],
        "messages": [{"role": "user", "content": "What does it cost when nothing computes?"}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "alloy", "format": "wav"},
        "max_tokens": 16,
        "stream": streamed,
    }


def _named_processes(plan: PipelinePlan) -> Iterator[tuple[str, psutil.Process]]:
    """Gateway and stages among this process's children, by what their command lines say."""
    for child in psutil.Process().children():
        arguments = child.cmdline()
        if "omnistage_gateway" in arguments:
            yield "gateway", child
        for stage in plan.stages:
            if "omnistage_stage" in arguments and f"{stage.name}-0" in arguments:
                yield stage.name, child


def _memory(processes: dict[str, psutil.Process]) -> Memory:
    resident = {name: process.memory_info().rss / _MB for name, process in processes.items()}
    gateway = resident.pop("gateway")
    return Memory(gateway=round(gateway, 1), stage=round(max(resident.values()), 1))


def _cpu(processes: dict[str, psutil.Process]) -> dict[str, float]:
    times = {name: process.cpu_times() for name, process in processes.items()}
    return {name: spent.user + spent.system for name, spent in times.items()}


async def _idle_cpu(processes: dict[str, psutil.Process]) -> float:
    before = sum(_cpu(processes).values())
    start = time.perf_counter()
    await asyncio.sleep(IDLE_SECONDS)
    spent = sum(_cpu(processes).values()) - before
    return spent / (time.perf_counter() - start) * 100
