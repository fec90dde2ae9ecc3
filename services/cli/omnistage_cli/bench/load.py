"""Load on an OpenAI API from a number of clients, in a process of its own.

`python -m omnistage_cli.bench.load` reads a `LoadOrder` as JSON from its standard input and prints a
`LoadResult` as JSON. Each client sends its next request when its last answer is complete (a closed
loop). The client is aiohttp, as it is what the figures of other systems in
`docs/explanation/performance.md` were measured with; its own cost is part of every figure.
"""

import asyncio
import statistics
import sys
import time
from typing import Final

import aiohttp
import msgspec
import uvloop

from omnistage_cli.bench.orders import LoadOrder, LoadResult

__all__ = ["percentile_ms"]

_OK: Final = 200
_LAST_EVENT: Final = b"data: [DONE]\n\n"


async def _ask(session: aiohttp.ClientSession, url: str, body: bytes, *, streamed: bool) -> float:
    """Seconds from sending a request to the last byte of its answer."""
    start = time.perf_counter()
    headers = {"content-type": "application/json"}
    async with session.post(url, data=body, headers=headers) as response:
        answer = await response.read()
    seconds = time.perf_counter() - start
    if response.status != _OK or (streamed and not answer.endswith(_LAST_EVENT)):
        raise SystemExit(f"the answer has status {response.status}: {answer[:500]!r}")
    return seconds


async def _round(
    session: aiohttp.ClientSession, order: LoadOrder, body: bytes
) -> tuple[list[float], float]:
    """Latencies of one round in seconds, and its requests per second."""
    streamed = bool(order.body.get("stream"))
    latencies: list[float] = []
    left = iter(range(order.requests))

    async def client() -> None:
        for _ in left:
            seconds = await _ask(session, order.url, body, streamed=streamed)
            latencies.append(seconds)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as clients:
        for _ in range(order.clients):
            clients.create_task(client())
    return latencies, order.requests / (time.perf_counter() - start)


async def _load(order: LoadOrder) -> LoadResult:
    body = msgspec.json.encode(order.body)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        warmup = msgspec.structs.replace(order, requests=order.warmup)
        await _round(session, warmup, body)
        cpu = time.process_time()
        rounds = [await _round(session, order, body) for _ in range(order.rounds)]
        cpu = time.process_time() - cpu
    latencies = sorted(latency for round_, _ in rounds for latency in round_)
    rates = tuple(round(rate, 1) for _, rate in rounds)
    return LoadResult(
        p50_ms=percentile_ms(latencies, 50),
        p95_ms=percentile_ms(latencies, 95),
        p99_ms=percentile_ms(latencies, 99),
        rps=statistics.median(rates),
        rps_of_rounds=rates,
        cpu_us=round(cpu / len(latencies) * 1e6, 1),
    )


def percentile_ms(ordered: list[float], percent: int) -> float:
    """The latency that so many per cent do not exceed, in milliseconds.

    Args:
        ordered: Latencies in seconds, shortest first; at least one.
        percent: 0 to 100.
    """
    index = min(len(ordered) - 1, len(ordered) * percent // 100)
    return round(ordered[index] * 1e3, 3)


def main() -> None:
    """Runs the order on standard input."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=LoadOrder)
    result = uvloop.run(_load(order))
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
