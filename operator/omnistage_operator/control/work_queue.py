"""Which key is worked on next: a de-duplicating, delaying queue as a machine without I/O or clock.

    key is      add            add_after             take           done
    -------     -----------    ------------------    -----------    -------------------------
    nowhere     waiting        delayed               -              -
    waiting     waiting        waiting (+ delayed)   working        -
    delayed     waiting        earlier of the two    -              -
    working     working+due    working + delayed     -              nowhere, or waiting if due

A key is never handed to two workers at once, however often it is added, and a key added while it is
worked on comes once more afterwards: work that began before a change may not have seen it. Taking a
key drops its delay, since the work that begins now decides anew when to look again.
"""

import heapq
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["WorkQueue"]

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """The machine; `omnistage_operator.control.queueing` gives it a clock and workers."""

    def __init__(self) -> None:
        self._waiting: deque[K] = deque()
        self._added_at: dict[K, float] = {}
        """Waiting keys, and since when."""
        self._started_at: dict[K, float] = {}
        """Keys in work, and since when."""
        self._due_again: set[K] = set()
        """Keys in work that were added meanwhile."""
        self._due_at: dict[K, float] = {}
        """Delayed keys, and until when."""
        self._heap: list[tuple[float, int, K]] = []
        """Delays in order; entries that `_due_at` no longer confirms are stale."""
        self._entries = 0

    def add(self, key: K, now: float) -> bool:
        """The key needs work now; False when that was known."""
        if key in self._started_at:
            known = key in self._due_again
            self._due_again.add(key)
            return not known
        if key in self._added_at:
            return False
        self._due_at.pop(key, None)
        self._added_at[key] = now
        self._waiting.append(key)
        return True

    def add_after(self, key: K, delay: float, now: float) -> bool:
        """The key needs work in `delay` seconds; the earliest of several such wishes counts."""
        if delay <= 0:
            return self.add(key, now)
        due = now + delay
        if self._due_at.get(key, due + 1) <= due:
            return False
        self._due_at[key] = due
        self._entries += 1
        heapq.heappush(self._heap, (due, self._entries, key))
        return True

    def wake(self, now: float) -> None:
        """Moves the delayed keys whose time has come to the waiting ones."""
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._due_at.get(key) == due:
                del self._due_at[key]
                self.add(key, now)

    def next_due(self) -> float | None:
        """When `wake` has something to move, None when nothing is delayed."""
        while self._heap and self._due_at.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> tuple[K, float] | None:
        """The key that waits longest and the seconds it waited, None when none does."""
        if not self._waiting:
            return None
        key = self._waiting.popleft()
        waited = now - self._added_at.pop(key)
        self._due_at.pop(key, None)
        self._started_at[key] = now
        return key, waited

    def done(self, key: K, now: float) -> float:
        """The work that `take` began is over, well or badly; the seconds that it took."""
        worked = now - self._started_at.pop(key)
        if key in self._due_again:
            self._due_again.remove(key)
            self.add(key, now)
        return worked

    @property
    def depth(self) -> int:
        """Keys that wait for a worker."""
        return len(self._waiting)

    @property
    def delayed(self) -> int:
        """Keys whose time has not come."""
        return len(self._due_at)

    @property
    def working(self) -> int:
        """Keys in work."""
        return len(self._started_at)

    def unfinished(self, now: float) -> tuple[float, float]:
        """Seconds that the work in progress has taken: all together, and the longest."""
        ages = [now - started for started in self._started_at.values()]
        return sum(ages), max(ages, default=0.0)
