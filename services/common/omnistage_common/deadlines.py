"""One absolute deadline per request, as a value.

It is fixed once, when the gateway has read the request's head, and carried everywhere. On the wire
it is wall-clock time (hosts keep theirs in step to milliseconds); within a process it is turned
into the monotonic clock once, so that a clock step never shortens or stretches a request.
"""

import time
from dataclasses import dataclass
from typing import Self

__all__ = ["Deadline"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadline:
    """A point on this process's monotonic clock."""

    monotonic: float
    """Seconds, as `time.monotonic()` counts them; asyncio's loop clock is the same."""

    @classmethod
    def after(cls, seconds: float) -> Self:
        """The deadline that many seconds from now."""
        return cls(monotonic=time.monotonic() + seconds)

    @classmethod
    def from_unix_us(cls, unix_us: int) -> Self:
        """The deadline that a peer sent: microseconds since the Unix epoch."""
        return cls(monotonic=time.monotonic() + unix_us / 1e6 - time.time())

    def to_unix_us(self) -> int:
        """As a peer wants it: microseconds since the Unix epoch."""
        return round((time.time() + self.remaining()) * 1e6)

    def remaining(self) -> float:
        """Seconds left; negative when it has passed."""
        return self.monotonic - time.monotonic()

    @property
    def passed(self) -> bool:
        """Whether it has passed."""
        return self.remaining() <= 0
