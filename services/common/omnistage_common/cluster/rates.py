"""How fast at most: a token bucket and an exponential back-off, as arithmetic without a clock."""

import math
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

import msgspec

__all__ = ["Backoff", "BackoffRule", "TokenBucket"]

K = TypeVar("K", bound=Hashable)

_MAX_DOUBLINGS: Final = 64
"""Beyond this the cap has long been reached; it keeps the power from overflowing."""


class TokenBucket:
    """Lets `burst` through at once and `rate` a second in the long run; the rest is told to wait.

    A caller that is told to wait has its turn booked already, so turns come in order.
    """

    def __init__(self, *, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._at = -math.inf

    def book(self, now: float) -> float:
        """Takes the next turn.

        Args:
            now: Seconds on any clock that does not go back.

        Returns:
            Seconds until the turn, 0 for at once.
        """
        gained = (now - self._at) * self._rate
        self._tokens = min(self._burst, self._tokens + gained)
        self._at = now
        self._tokens -= 1
        return max(0.0, -self._tokens / self._rate)


class BackoffRule(msgspec.Struct, frozen=True, kw_only=True):
    """How the wait grows from failure to failure."""

    first_s: float = 0.005
    """Seconds after the first failure; doubles with each further one. client-go's default."""
    most_s: float = 300.0
    """Seconds it never exceeds. client-go allows 1000; a mended cluster is noticed sooner."""

    def after(self, failures: int) -> float:
        """Seconds to wait after that many failures in a row, at least one."""
        doublings = min(failures - 1, _MAX_DOUBLINGS)
        return float(min(self.most_s, self.first_s * 2.0**doublings))


class Backoff(Generic[K]):
    """Counts failures in a row per key."""

    def __init__(self, rule: BackoffRule) -> None:
        self._rule = rule
        self._failures: dict[K, int] = {}

    def fail(self, key: K) -> float:
        """Notes one more failure; the seconds to wait before the next try."""
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        return self._rule.after(failures)

    def forget(self, key: K) -> None:
        """The key succeeded: its next failure counts as the first."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """Failures in a row."""
        return self._failures.get(key, 0)

    def __len__(self) -> int:
        return len(self._failures)
