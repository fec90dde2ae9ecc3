"""The one thread that computes, and the queue in front of it, seen from asyncio.

Jobs wait in a `Grouping` and are computed group by group. A job that is not wanted any more leaves:
from the queue at once; from a running group at once too, its share of the batch is then computed in
vain, since the tensors of a running call have the size they have. When all of a group have left, the
call is stopped at its next step. A group that fails is computed again, job by job, so that only the
job at fault fails. Nothing here knows diffusers: any function from jobs to results will do.
"""

import asyncio
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Generic, Protocol, TypeVar

import structlog
from msgspec import Struct

from omnistage_common.errors import EngineFailed, OmnistageError, truncated
from omnistage_stage.engines.diffusers.grouping import Grouping

__all__ = ["AbandonedError", "Batcher", "Keyed", "Watch"]

_log = structlog.get_logger(__name__)


class Keyed(Protocol):
    """What can be batched."""

    @property
    def key(self) -> Hashable:
        """Jobs with equal keys may be computed in one call."""


J = TypeVar("J", bound=Keyed)
R = TypeVar("R")

Progressed = Callable[[int, int], None]
"""Told on the event loop how many steps of a job are done, and of how many."""


class AbandonedError(Exception):
    """Nobody waits for what is being computed; ends the call."""


class Watch:
    """What the computing thread says, and hears, about the jobs in its hands."""

    def __init__(self, report: Progressed) -> None:
        self._report = report
        self._abandoned = threading.Event()

    def step(self, done: int, total: int) -> None:
        """Some steps of every job are done.

        Raises:
            AbandonedError: Nobody waits for the rest.
        """
        if self._abandoned.is_set():
            raise AbandonedError
        self._report(done, total)

    def abandon(self) -> None:
        """From now on, `step` raises."""
        self._abandoned.set()


class _Entry(Struct, Generic[J, R], frozen=True):
    job: J
    result: asyncio.Future[R]
    progressed: Progressed


class Batcher(Generic[J, R]):
    """Jobs in, results out. Used from one event loop."""

    def __init__(
        self,
        compute: Callable[[Sequence[J], Watch], Sequence[R]],
        *,
        name: str,
        prepare: Callable[[], None],
        max_size: int,
        max_wait: float,
    ) -> None:
        """Starts nothing; a coroutine must call `start`.

        Args:
            compute: Called in the thread with jobs of equal keys; returns one result for each.
            name: Of the thread.
            prepare: Called once in the thread, before everything else.
            max_size: Jobs in one call.
            max_wait: Seconds for which a job waits for others while the thread is idle.
        """
        self._function = compute
        self._executor = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix=name, initializer=prepare
        )
        self._grouping: Grouping[Hashable] = Grouping(max_size=max_size, max_wait=max_wait)
        self._entries: dict[int, _Entry[J, R]] = {}
        self._running: tuple[frozenset[int], Watch] | None = None
        self._changed = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._tickets = 0

    @property
    def active(self) -> int:
        """Jobs that somebody waits for, and one more while a call runs that nobody wants."""
        unwanted = self._running is not None and not self._wanted(self._running[0])
        return len(self._entries) + unwanted

    def start(self) -> None:
        """Takes jobs from now on. To be called on the event loop that will bring them."""
        self._serving = asyncio.create_task(self._serve(), name="batching")
        self._serving.add_done_callback(self._end)

    @contextmanager
    def submitted(
        self, jobs: Iterable[J], progressed: Sequence[Progressed]
    ) -> Iterator[list[asyncio.Future[R]]]:
        """Has jobs computed; those that are not done at the exit are given up.

        Args:
            jobs: All of one request.
            progressed: One for each job.

        Yields:
            The results, in the order of the jobs. One that fails raises `OmnistageError`.

        Raises:
            EngineFailed: The batcher was closed.
        """
        if self._serving is None or self._serving.done():
            raise EngineFailed("the engine has been closed")
        tickets = [self._join(job, told) for job, told in zip(jobs, progressed, strict=True)]
        try:
            yield [self._entries[ticket].result for ticket in tickets]
        finally:
            for ticket in tickets:
                self._leave(ticket)

    async def close(self) -> None:
        """Stops the running call at its next step and ends the thread."""
        if self._running is not None:
            self._running[1].abandon()
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])
        await asyncio.to_thread(self._executor.shutdown)

    def _join(self, job: J, progressed: Progressed) -> int:
        loop = asyncio.get_running_loop()
        self._tickets += 1
        self._entries[self._tickets] = _Entry(job, loop.create_future(), progressed)
        self._grouping.join(self._tickets, job.key, loop.time())
        self._changed.set()
        return self._tickets

    def _leave(self, ticket: int) -> None:
        entry = self._entries.pop(ticket)
        self._grouping.leave(ticket)
        if not entry.result.cancel() and not entry.result.cancelled():
            # Looked at, so that asyncio does not report it as forgotten.
            entry.result.exception()
        if self._running is not None and not self._wanted(self._running[0]):
            self._running[1].abandon()
        self._changed.set()

    def _wanted(self, tickets: Iterable[int]) -> bool:
        return any(ticket in self._entries for ticket in tickets)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            if group := self._grouping.take(loop.time()):
                await self._compute(group)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._grouping.due()):
                    await self._changed.wait()

    async def _compute(self, tickets: Sequence[int]) -> None:
        """Computes a group together, or one by one when that fails."""
        present = [ticket for ticket in tickets if ticket in self._entries]
        if not present:
            return
        submitted = await self._call(present)
        error = submitted.exception()
        if error is None:
            for ticket, result in zip(present, submitted.result(), strict=True):
                self._settle(ticket, result)
        elif isinstance(error, AbandonedError) or len(present) == 1:
            self._fail(present, error)
        else:
            _log.warning("a batch failed; its requests are computed one by one", error=repr(error))
            for ticket in present:
                await self._compute((ticket,))

    async def _call(self, tickets: Sequence[int]) -> Future[Sequence[R]]:
        """One call in the thread, ended however it ended."""
        loop = asyncio.get_running_loop()
        jobs = [self._entries[ticket].job for ticket in tickets]

        def report(done: int, total: int) -> None:
            loop.call_soon_threadsafe(self._progress, tickets, done, total)

        watch = Watch(report)
        submitted = self._executor.submit(self._checked, jobs, watch)
        ended = asyncio.wrap_future(submitted)
        self._running = (frozenset(tickets), watch)
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError:
            watch.abandon()
            await asyncio.wait([ended])
            raise
        finally:
            self._running = None
            if ended.done():
                ended.exception()
        return submitted

    def _checked(self, jobs: Sequence[J], watch: Watch) -> Sequence[R]:
        results = self._function(jobs, watch)
        if len(results) != len(jobs):
            raise EngineFailed(f"{len(jobs)} jobs were computed and {len(results)} results came")
        return results

    def _progress(self, tickets: Sequence[int], done: int, total: int) -> None:
        for ticket in tickets:
            if (entry := self._entries.get(ticket)) is not None:
                entry.progressed(done, total)

    def _settle(self, ticket: int, result: R) -> None:
        entry = self._entries.get(ticket)
        if entry is not None and not entry.result.done():
            entry.result.set_result(result)

    def _fail(self, tickets: Iterable[int], error: BaseException) -> None:
        for ticket in tickets:
            entry = self._entries.get(ticket)
            if entry is not None and not entry.result.done():
                entry.result.set_exception(_as_ours(error))

    def _end(self, serving: asyncio.Task[None]) -> None:
        """Whatever ended the queue, nobody shall wait for it."""
        cause = None if serving.cancelled() else serving.exception()
        self._fail(list(self._entries), cause or EngineFailed("the engine was closed"))


def _as_ours(error: BaseException) -> OmnistageError:
    if isinstance(error, OmnistageError):
        return error
    failed = EngineFailed(f"diffusion failed: {truncated(repr(error))}")
    failed.__cause__ = error
    return failed
