"""The work queue with a clock: asyncio workers wait on it, delays are timers of the event loop.

All rules are in `omnistage_operator.control.work_queue`; this shell only knows time, waiting and
how failures turn into delays. It belongs to one event loop and takes no locks.
"""

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

from omnistage_common.cluster.rates import Backoff, BackoffRule, TokenBucket
from omnistage_operator.control.metrics import QueueMetrics
from omnistage_operator.control.work_queue import WorkQueue

__all__ = ["Queue", "QueueRates"]

K = TypeVar("K", bound=Hashable)


class QueueRates(msgspec.Struct, frozen=True, kw_only=True):
    """How fast failed keys come back."""

    backoff: BackoffRule = BackoffRule()
    retries_per_s: float = 10.0
    """Over all keys together, so that a broken cluster is not hammered. client-go's default."""
    retry_burst: int = 100


class Queue(Generic[K]):
    """Keys to work on, each at most once at a time."""

    def __init__(self, *, rates: QueueRates | None = None, metrics: QueueMetrics) -> None:
        rates = rates or QueueRates()
        self._machine: WorkQueue[K] = WorkQueue()
        self._backoff: Backoff[K] = Backoff(rates.backoff)
        self._bucket = TokenBucket(rate=rates.retries_per_s, burst=rates.retry_burst)
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._takers: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        """When the timer fires; a loop need not tell of a time that is almost now."""
        self._closed = False
        metrics.observe(self)

    def add(self, key: K) -> None:
        """The key needs work now. Ignored once the queue is closed."""
        if not self._closed and self._machine.add(key, self._now()):
            self._metrics.added()
            self._rouse()

    def add_after(self, key: K, delay: float) -> None:
        """The key needs work in `delay` seconds. Ignored once the queue is closed."""
        if not self._closed and self._machine.add_after(key, delay, self._now()):
            self._rouse()

    def add_rate_limited(self, key: K, *, at_least: float = 0.0) -> None:
        """The key failed: it comes back after its back-off, and no sooner than the bucket lets it.

        Args:
            key: Which.
            at_least: Seconds that somebody else asks to wait, e.g. a busy server.
        """
        self._metrics.retried()
        delay = max(self._backoff.fail(key), self._bucket.book(self._now()), at_least)
        self.add_after(key, delay)

    def forget(self, key: K) -> None:
        """The key succeeded: its back-off starts anew."""
        self._backoff.forget(key)

    def failures(self, key: K) -> int:
        """How often the key failed in a row."""
        return self._backoff.failures(key)

    async def get(self) -> K | None:
        """Waits for a key; whoever gets one calls `done`. None: closed, and nothing is left."""
        while True:
            taken = self._machine.take(self._now())
            if taken is not None:
                self._metrics.waited(taken[1])
                return taken[0]
            if self._closed:
                return None
            await self._turn()

    def done(self, key: K) -> None:
        """The work on the key is over, well or badly."""
        self._metrics.worked(self._machine.done(key, self._now()))
        self._rouse()

    def close(self) -> None:
        """Takes no more keys; waiting ones are still handed out, delayed ones are dropped."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._takers:
            self._release(self._takers.popleft())

    @property
    def depth(self) -> int:
        """Keys that wait for a worker."""
        return self._machine.depth

    @property
    def delayed(self) -> int:
        """Keys whose time has not come."""
        return self._machine.delayed

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing is in work; keys may be delayed."""
        return self._machine.depth == 0 and self._machine.working == 0

    def unfinished(self) -> tuple[float, float]:
        """Seconds that the work in progress has taken: all together, and the longest."""
        return self._machine.unfinished(self._now())

    def _now(self) -> float:
        return self._loop.time()

    async def _turn(self) -> None:
        """Waits until a key may be there; a cancelled waiter passes its turn on."""
        turn = self._loop.create_future()
        self._takers.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._takers:
                self._takers.remove(turn)
            else:
                self._rouse()
            raise

    def _rouse(self) -> None:
        """Wakes as many workers as keys wait, and sets the timer for the next delayed key."""
        for _ in range(min(self._machine.depth, len(self._takers))):
            self._release(self._takers.popleft())
        self._set_timer()

    @staticmethod
    def _release(turn: asyncio.Future[None]) -> None:
        if not turn.done():
            turn.set_result(None)

    def _set_timer(self) -> None:
        due = None if self._closed else self._machine.next_due()
        if self._timer is not None:
            if due == self._timer_due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer_due = due
            self._timer = self._loop.call_at(due, self._wake)

    def _wake(self) -> None:
        self._timer = None
        before = self._machine.depth
        self._machine.wake(self._now())
        for _ in range(self._machine.depth - before):
            self._metrics.added()
        self._rouse()
