"""Who waits for company and who starts: the rule by which requests become batches.

A group is made of tickets with equal keys, oldest first, and never has more than `max_size`. It is
ripe when it is full, or when its oldest ticket has waited for `max_wait`. Of ripe groups, the one
whose oldest ticket came first goes first, so nobody is overtaken for longer than one group takes.

No clock and no I/O: times are numbers that the caller passes, on any one scale that does not fall.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

from msgspec import Struct

__all__ = ["Grouping"]

K = TypeVar("K", bound=Hashable)


class _Waiting(Struct, Generic[K], frozen=True):
    key: K
    since: float


class Grouping(Generic[K]):
    """Tickets that have not started."""

    def __init__(self, *, max_size: int, max_wait: float) -> None:
        self._max_size = max_size
        self._max_wait = max_wait
        self._waiting: dict[int, _Waiting[K]] = {}
        self._alike: dict[K, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, ticket: int, key: K, now: float) -> None:
        """A ticket begins to wait."""
        self._waiting[ticket] = _Waiting(key, now)
        self._alike.setdefault(key, {})[ticket] = None

    def leave(self, ticket: int) -> None:
        """A ticket waits no more; one that does not wait is no mistake."""
        waiting = self._waiting.pop(ticket, None)
        if waiting is None:
            return
        alike = self._alike[waiting.key]
        del alike[ticket]
        if not alike:
            del self._alike[waiting.key]

    def take(self, now: float) -> tuple[int, ...]:
        """The group to start now, which waits no more; empty when everybody should go on waiting."""
        for waiting in self._waiting.values():
            group = tuple(self._alike[waiting.key])[: self._max_size]
            if len(group) == self._max_size or now >= self._due(group[0]):
                for ticket in group:
                    self.leave(ticket)
                return group
        return ()

    def due(self) -> float | None:
        """When the next group is ripe if nobody else comes; None when nobody waits."""
        oldest = next(iter(self._waiting), None)
        return None if oldest is None else self._due(oldest)

    def _due(self, ticket: int) -> float:
        return self._waiting[ticket].since + self._max_wait
