"""Asks for streamed speech and notes when the first of it comes, in a process of its own.

`python -m omnistage_cli.bench.listener` reads a `ListenOrder` as JSON from its standard input and
prints a `ListenResult` as JSON. One request at a time; the client is aiohttp, as for the load.
"""

import sys
import time
from typing import Final

import aiohttp
import msgspec
import uvloop

from omnistage_cli.bench.orders import Hearing, ListenOrder, ListenResult

_OK: Final = 200
_DATA: Final = b"data: "
_LINE_BYTES: Final = 64 * 1024 * 1024
"""Without streaming all of the audio comes in one event."""
_LAST: Final = b"[DONE]"


class _Clock:
    """Milliseconds since its making."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def __call__(self) -> float:
        return (time.perf_counter() - self._start) * 1e3


async def _listen(session: aiohttp.ClientSession, url: str, body: bytes) -> Hearing:
    first: dict[str, float] = {}
    size = 0
    clock = _Clock()
    async with session.post(url, data=body, headers={"content-type": "application/json"}) as answer:
        if answer.status != _OK:
            raise SystemExit(f"the answer has status {answer.status}: {await answer.text()}")
        async for line in answer.content:
            if not line.startswith(_DATA) or line.startswith(_DATA + _LAST):
                continue
            event = msgspec.json.decode(line[len(_DATA) :])
            if "error" in event:
                raise SystemExit(f"the answer failed: {event['error']}")
            for choice in event["choices"]:
                delta = choice["delta"]
                data = (delta.get("audio") or {}).get("data")
                if data:
                    first.setdefault("audio", clock())
                    size += len(data) * 3 // 4
                if delta.get("content"):
                    first.setdefault("text", clock())
    missing = {"audio", "text"} - first.keys()
    if missing:
        raise SystemExit(f"the answer brought no {' and no '.join(sorted(missing))}")
    return Hearing(
        first_text_ms=round(first["text"], 2),
        first_audio_ms=round(first["audio"], 2),
        last_byte_ms=round(clock(), 2),
        audio_bytes=size,
    )


async def _run(order: ListenOrder) -> ListenResult:
    body = msgspec.json.encode(order.body)
    async with aiohttp.ClientSession(read_bufsize=_LINE_BYTES) as session:
        for _ in range(order.warmup):
            await _listen(session, order.url, body)
        hearings = [await _listen(session, order.url, body) for _ in range(order.requests)]
    return ListenResult(hearings=tuple(hearings))


def main() -> None:
    """Runs the order on standard input."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=ListenOrder)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(_run(order))))


if __name__ == "__main__":
    main()
