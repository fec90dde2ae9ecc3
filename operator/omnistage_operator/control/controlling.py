"""A controller: what changed becomes keys, workers bring the world in step with each key.

What people write (an object is new, its spec is another, it is deleted) is looked at now. Everything else
comes in bursts, such as the statuses of pods that start: it is looked at after a moment, once for all
that came meanwhile, which saves the writes in between.

Level, not edge: a key says only *where* something may be out of step. The reconcile reads the caches
and converges; it is told neither what happened nor how often. One key is worked on by one worker at a
time, different keys at the same time.

A reconcile ends in one of five ways. It returns: done, or to be looked at again later. It raises
`WriteConflict`: somebody wrote in between, so it is tried once more at once, since the cache knows
better by now. It raises `WriteFenced`: this process leads no longer, which is no failure. It raises
anything else: that is logged, counted and tried again after a growing pause. This is the one place of
the operator that catches everything, as a planner's bug must cost one object and not all.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import msgspec
import structlog

from omnistage_common.cluster.errors import WriteConflict, WriteFenced
from omnistage_common.cluster.kinds import ResourceKind
from omnistage_common.cluster.manifests import (
    Manifest,
    ObjectKey,
    controller_of,
    is_deleted,
    key_of,
    labels_of,
)
from omnistage_common.cluster.watched import Watched
from omnistage_common.errors import OmnistageError, truncated
from omnistage_operator.control.metrics import ControllerMetrics, ReconcileResult
from omnistage_operator.control.queueing import Queue, QueueRates

__all__ = [
    "DONE",
    "Controller",
    "KeyRule",
    "Reconcile",
    "Result",
    "Source",
    "label_keys",
    "own_key",
    "owner_keys",
]

log = structlog.get_logger(__name__)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How a reconcile that did not fail ended."""

    requeue_after: float | None = None
    """Seconds after which to look again even if nothing changes, None for never."""


DONE: Final = Result()
"""Nothing is left to do until something changes."""

Reconcile = Callable[[ObjectKey], Awaitable[Result]]
KeyRule = Callable[[Manifest], Iterable[ObjectKey]]
"""Which keys a changed object concerns; asked for the state before and the state after."""


def own_key(manifest: Manifest) -> Iterable[ObjectKey]:
    """The object concerns itself."""
    return (key_of(manifest),)


def owner_keys(kind: ResourceKind) -> KeyRule:
    """The object concerns its controller, if that is of this kind."""

    def keys(manifest: Manifest) -> Iterable[ObjectKey]:
        owner = controller_of(manifest)
        if owner is None or (owner.api_version, owner.kind) != (kind.api_version, kind.kind):
            return ()
        namespace = key_of(manifest).namespace if kind.namespaced else ""
        return (ObjectKey(namespace, owner.name),)

    return keys


def label_keys(label: str) -> KeyRule:
    """The object concerns the one of its namespace that this label names."""

    def keys(manifest: Manifest) -> Iterable[ObjectKey]:
        name = labels_of(manifest).get(label)
        return (ObjectKey(key_of(manifest).namespace, name),) if name else ()

    return keys


class Source(msgspec.Struct, frozen=True):
    """A kind whose changes wake a controller."""

    watched: Watched
    keys: KeyRule = own_key


class Controller:
    """Workers over one queue. Make it before the caches run, so that it misses no change."""

    def __init__(
        self,
        *,
        name: str,
        reconcile: Reconcile,
        primary: Watched,
        sources: Sequence[Source] = (),
        metrics: ControllerMetrics,
        workers: int = 4,
        rates: QueueRates | None = None,
        settle_s: float = 0.0,
    ) -> None:
        """Listens to its sources at once; keys are worked on while `run` runs.

        Args:
            name: Of the controller, for logs and metrics.
            reconcile: Brings the world in step with one key of the primary kind.
            primary: The kind whose keys are reconciled; its own changes wake the controller too.
            sources: Other kinds that do.
            metrics: Where to count.
            workers: Keys worked on at the same time.
            rates: How fast failed keys come back.
            settle_s: Seconds between a change that nobody wrote by hand and the look at it.
        """
        self.name = name
        self._reconcile = reconcile
        self._primary = primary.store
        self._metrics = metrics
        self._workers = workers
        self._rates = rates
        self._settle_s = settle_s
        self._queue: Queue[ObjectKey] | None = None
        primary.on_change(self._primary_changed)
        for source in sources:
            source.watched.on_change(self._listener(source.keys))

    async def run(self) -> None:
        """Works until cancelled; begins with every object of the primary kind.

        Tells the log when it has looked at each of them, whatever came of that.
        """
        queue: Queue[ObjectKey] = Queue(rates=self._rates, metrics=self._metrics.queue)
        self._queue = queue
        first = _FirstRound(self.name, self._primary.keys())
        self.enqueue_all()
        try:
            async with asyncio.TaskGroup() as workers:
                for number in range(self._workers):
                    workers.create_task(self._work(queue, first), name=f"{self.name}-{number}")
        finally:
            self._queue = None
            queue.close()

    def enqueue(self, key: ObjectKey) -> None:
        """Has the key looked at soon. Does nothing while the controller does not run."""
        if self._queue is not None:
            self._queue.add(key)

    def enqueue_settled(self, key: ObjectKey) -> None:
        """Has the key looked at when what happens to it has had a moment to come together."""
        if self._queue is not None:
            self._queue.add_after(key, self._settle_s)

    def enqueue_all(self) -> None:
        """Has every object of the primary kind looked at."""
        keys = self._primary.keys()
        for key in keys:
            self.enqueue(key)

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing is in work; something may be due later."""
        return self._queue is None or self._queue.is_idle

    def _primary_changed(self, before: Manifest | None, after: Manifest | None) -> None:
        changed = after if after is not None else before
        if changed is None:
            return
        enqueue = self.enqueue_settled if _is_same_spec(before, after) else self.enqueue
        enqueue(key_of(changed))

    def _listener(self, keys: KeyRule) -> Callable[[Manifest | None, Manifest | None], None]:
        def changed(before: Manifest | None, after: Manifest | None) -> None:
            for manifest in (before, after):
                for key in keys(manifest) if manifest is not None else ():
                    self.enqueue_settled(key)

        return changed

    async def _work(self, queue: Queue[ObjectKey], first: "_FirstRound") -> None:
        while (key := await queue.get()) is not None:
            try:
                await self._once(queue, key)
            finally:
                queue.done(key)
            first.looked_at(key)
            # A reconcile that finds nothing to do may never wait; watches and the lease go on.
            await asyncio.sleep(0)

    async def _once(self, queue: Queue[ObjectKey], key: ObjectKey) -> None:
        started = asyncio.get_running_loop().time()
        self._metrics.begun()
        outcome = ReconcileResult.ERROR
        try:
            outcome = await self._guarded(queue, key)
        finally:
            self._metrics.ended(outcome, asyncio.get_running_loop().time() - started)

    async def _guarded(self, queue: Queue[ObjectKey], key: ObjectKey) -> ReconcileResult:
        """One reconcile and what becomes of its end; the boundary for a planner's failures."""
        try:
            result = await self._reconcile(key)
        except WriteFenced:
            return ReconcileResult.FENCED
        except WriteConflict as conflict:
            return self._conflicted(queue, key, conflict)
        except OmnistageError as error:
            log.warning("reconcile failed", **self._about(queue, key), error=error.message)
            queue.add_rate_limited(key, at_least=error.retry_after or 0.0)
        except Exception:
            log.exception("reconcile broke", **self._about(queue, key))
            queue.add_rate_limited(key)
        else:
            return self._succeeded(queue, key, result)
        return ReconcileResult.ERROR

    @staticmethod
    def _succeeded(queue: Queue[ObjectKey], key: ObjectKey, result: Result) -> ReconcileResult:
        queue.forget(key)
        if result.requeue_after is None:
            return ReconcileResult.SUCCESS
        queue.add_after(key, result.requeue_after)
        return ReconcileResult.REQUEUE_AFTER

    def _conflicted(
        self, queue: Queue[ObjectKey], key: ObjectKey, conflict: WriteConflict
    ) -> ReconcileResult:
        """The first conflict in a row is tried again at once, further ones after a pause."""
        if queue.failures(key):
            log.warning(
                "conflict again", **self._about(queue, key), error=truncated(conflict.message)
            )
        else:
            queue.add(key)
        queue.add_rate_limited(key)
        return ReconcileResult.CONFLICT

    def _about(self, queue: Queue[ObjectKey], key: ObjectKey) -> dict[str, str | int]:
        return {"controller": self.name, "key": str(key), "failures": queue.failures(key) + 1}


def _is_same_spec(before: Manifest | None, after: Manifest | None) -> bool:
    """Whether only a status, or other metadata, is different."""
    if before is None or after is None or is_deleted(before) is not is_deleted(after):
        return False
    generation = after["metadata"].get("generation")
    return generation is not None and before["metadata"].get("generation") == generation


class _FirstRound:
    """The objects that were there when a controller began, until it has looked at each of them."""

    def __init__(self, controller: str, keys: Iterable[ObjectKey]) -> None:
        self._controller = controller
        self._left = set(keys)
        self._count = len(self._left)
        self._began = asyncio.get_running_loop().time()
        if not self._left:
            self._tell()

    def looked_at(self, key: ObjectKey) -> None:
        """A reconcile of this key has ended, well or badly."""
        if key in self._left:
            self._left.remove(key)
            if not self._left:
                self._tell()

    def _tell(self) -> None:
        seconds = asyncio.get_running_loop().time() - self._began
        log.info(
            "looked at everything",
            controller=self._controller,
            objects=self._count,
            seconds=round(seconds, 3),
        )
