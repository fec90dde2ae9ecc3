"""What benchmarks tell the processes that measure for them, and what those answer.

Apart from the code that does it, since that needs packages (the extra `bench`) which somebody who
only serves does not have.
"""

from typing import Any

from msgspec import Struct

__all__ = ["Hearing", "ListenOrder", "ListenResult", "LoadOrder", "LoadResult"]


class LoadOrder(Struct, frozen=True, kw_only=True):
    """What to send."""

    url: str
    body: dict[str, Any]
    clients: int
    requests: int
    """Requests per round, over all clients."""
    rounds: int
    warmup: int
    """Requests before the first round, not counted."""


class LoadResult(Struct, frozen=True, kw_only=True):
    """What came of it."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    rps: float
    """Median of the rounds."""
    rps_of_rounds: tuple[float, ...]
    cpu_us: float
    """CPU time of the load's own process, per request."""


class ListenOrder(Struct, frozen=True, kw_only=True):
    """What to ask for."""

    url: str
    body: dict[str, Any]
    """Of a streamed chat completion with audio."""
    requests: int
    warmup: int
    """Requests before, not counted."""


class Hearing(Struct, frozen=True, kw_only=True):
    """One answer, in milliseconds from the sending of its request."""

    first_text_ms: float
    first_audio_ms: float
    last_byte_ms: float
    audio_bytes: int
    """Encoded audio in all, before base64."""


class ListenResult(Struct, frozen=True, kw_only=True):
    """What came."""

    hearings: tuple[Hearing, ...]
