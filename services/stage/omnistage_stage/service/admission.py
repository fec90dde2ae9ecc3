"""How many requests a replica takes, and in which order.

Two bounds: requests in the engine, and requests that wait for a place there. One more is refused
with `TooManyRequests`, at once, because a queue without a bound only turns overload into time-outs.
Places are handed over first in, first out. No I/O and no clock; the caller measures the wait.
"""

import asyncio
from collections import OrderedDict

from omnistage_common.errors import TooManyRequests

__all__ = ["Admission", "Place"]


class Place:
    """One request's place in the engine, taken or waited for."""

    def __init__(self, admission: "Admission", turn: asyncio.Future[None] | None) -> None:
        self._admission = admission
        self._turn = turn

    async def taken(self) -> None:
        """Returns when the place is ours."""
        if self._turn is not None:
            await self._turn

    def leave(self) -> None:
        """Gives the place, or the wait for it, up. Idempotent."""
        self._admission.leave(self)

    def withdraw(self) -> None:
        """Gives the wait for it up; a place that is taken stays taken. Idempotent."""
        self._admission.withdraw(self)


class Admission:
    """The places of one replica."""

    def __init__(self, *, max_running: int, max_queued: int) -> None:
        self._max_running = max_running
        self._max_queued = max_queued
        self._running: set[Place] = set()
        self._queued: OrderedDict[Place, asyncio.Future[None]] = OrderedDict()

    @property
    def running(self) -> int:
        """Requests in the engine."""
        return len(self._running)

    @property
    def queued(self) -> int:
        """Requests waiting for a place."""
        return len(self._queued)

    def enter(self) -> Place:
        """Takes a place, or a position in the queue.

        Raises:
            TooManyRequests: Both are full.
        """
        if len(self._running) < self._max_running and not self._queued:
            place = Place(self, None)
            self._running.add(place)
            return place
        if len(self._queued) >= self._max_queued:
            raise TooManyRequests(
                f"{self._max_running} requests run and {self._max_queued} wait on this replica;"
                " try again later, or raise the stage's replicas or limits.maxQueued"
            )
        turn = asyncio.get_running_loop().create_future()
        place = Place(self, turn)
        self._queued[place] = turn
        return place

    def withdraw(self, place: Place) -> None:
        """Takes a request out of the queue, if it is there."""
        self._queued.pop(place, None)

    def leave(self, place: Place) -> None:
        """Frees a place and hands it to whoever waits longest."""
        self._queued.pop(place, None)
        self._running.discard(place)
        while self._queued and len(self._running) < self._max_running:
            successor, turn = self._queued.popitem(last=False)
            if not turn.done():
                self._running.add(successor)
                turn.set_result(None)
