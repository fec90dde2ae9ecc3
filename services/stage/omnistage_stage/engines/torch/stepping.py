"""The one thread that owns a model and steps all running requests, seen from asyncio.

What the model makes for one request is a `Job`: it lives in the thread, is fed what arrives for its
request, and says whether the next step can do something for it. A `Stepper` advances all such jobs
at once. A job that waits for input holds up nobody; when all wait, the thread blocks on its mailbox
and costs nothing. Jobs join and leave between any two steps.

The event loop hears back by at most one callback per step, which carries what was made for every
request. If a step raises, the thread ends and every request fails, now and later: a model in an
unknown state is not used again. What is wrong with one request alone is raised as an
`OmnistageError` from its job's own methods and fails that request only.
"""

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from omnistage_common.errors import EngineFailed, OmnistageError, SetupError, truncated
from omnistage_common.payloads import Payload
from omnistage_stage.engines.protocol import EngineResult

__all__ = ["Job", "StepLoop", "Stepper"]


class Job(ABC):
    """One request within the thread."""

    def __init__(self) -> None:
        self.made: list[Payload] = []
        """What the last step made for it; the loop hands it over and empties the list."""
        self.end: EngineResult | OmnistageError | None = None
        """How it ended; set by the stepper or by the job itself."""

    @abstractmethod
    def feed(self, port: str, rows: Any) -> None:
        """Takes what arrived at a port.

        Args:
            port: As in `StepLoop.run`.
            rows: What the port's reader made of one piece; the job's own.

        Raises:
            OmnistageError: It cannot be used; ends this job only.
        """

    @abstractmethod
    def exhaust(self, port: str) -> None:
        """Notes that no more will arrive at a port.

        Raises:
            OmnistageError: There is too little of it; ends this job only.
        """

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether a step can advance it now."""

    @abstractmethod
    def leave(self) -> None:
        """Gives back what it holds. Called once, whether it ended, failed or was cancelled."""


J = TypeVar("J", bound=Job)
J_contra = TypeVar("J_contra", bound=Job, contravariant=True)


class Stepper(Protocol[J_contra]):
    """What advances jobs; made, called and closed in the thread."""

    def step(self, jobs: Sequence[J_contra]) -> None:
        """Advances every one of these jobs, all of them ready, by one step."""

    def close(self) -> None:
        """Frees the model."""


class _Enter(Struct, frozen=True):
    ticket: int
    make: Callable[[], Any]


class _Feed(Struct, frozen=True):
    ticket: int
    port: str
    rows: Any


class _Exhaust(Struct, frozen=True):
    ticket: int
    port: str


class _Leave(Struct, frozen=True):
    ticket: int
    left: asyncio.Future[None]


class _Stop(Struct, frozen=True):
    pass


_Message = _Enter | _Feed | _Exhaust | _Leave | _Stop


class _Report(Struct, frozen=True):
    """What one step made for one request."""

    ticket: int
    made: list[Payload]
    end: EngineResult | OmnistageError | None


class _Waiting(Struct, frozen=True):
    emit: Callable[[Payload], None]
    end: asyncio.Future[EngineResult]


Reader = Callable[[Payload], Any]
"""Makes of one piece, on the event loop, what the job is fed; copies what must live on."""


class StepLoop(Generic[J]):
    """A stepper, its thread and the jobs in it. Used from one event loop."""

    def __init__(self, make_stepper: Callable[[], Stepper[J]], *, name: str) -> None:
        self._make_stepper = make_stepper
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._mailbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._jobs: dict[int, J] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._leaving: set[asyncio.Future[None]] = set()
        self._tickets = 0
        self._failure: BaseException | None = None

    @property
    def active(self) -> int:
        """Jobs in the thread."""
        return len(self._jobs)

    async def start(self) -> None:
        """Makes the stepper in the thread; returns when jobs can enter.

        Raises:
            OmnistageError: What making it raised.
            SetupError: The same, where a foreign runtime raised it.
        """
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._thread.start()
        # Shielded: the thread finishes what it began, whoever gives up waiting.
        await asyncio.shield(self._started)

    async def run(
        self,
        make: Callable[[], J],
        feeds: Mapping[str, tuple[AsyncIterator[Payload], Reader]],
        emit: Callable[[Payload], None],
    ) -> EngineResult:
        """Runs one request. When cancelled, returns after its job has left.

        Args:
            make: Makes the job, in the thread.
            feeds: Port -> its pieces and how they are read.
            emit: Called on the event loop with everything the job makes, in order.

        Raises:
            EngineFailed: The stepper failed, now or earlier.
            OmnistageError: What the job says about this request, or the loss of an input.
        """
        if self._ended.is_set():
            raise self._failed()
        self._tickets += 1
        ticket = self._tickets
        end: asyncio.Future[EngineResult] = self._loop.create_future()
        self._waiting[ticket] = _Waiting(emit, end)
        self._mailbox.put(_Enter(ticket, make))
        try:
            async with asyncio.TaskGroup() as group:
                reading = [
                    group.create_task(self._read(ticket, port, *feed, end))
                    for port, feed in feeds.items()
                ]
                # Only waited for here: what a group's body raises comes out of it wrapped.
                await asyncio.wait([end])
                for task in reading:
                    task.cancel()
            return end.result()
        finally:
            # Still there: the thread has not said that the job ended.
            if self._waiting.pop(ticket, None) is not None:
                await self._leave(ticket)

    async def stop(self) -> None:
        """Closes the stepper and ends the thread; running requests fail."""
        if not self._thread.is_alive():
            return
        self._mailbox.put(_Stop())
        await self._ended.wait()
        self._thread.join()

    async def _read(
        self,
        ticket: int,
        port: str,
        pieces: AsyncIterator[Payload],
        reader: Reader,
        end: asyncio.Future[EngineResult],
    ) -> None:
        try:
            async for piece in pieces:
                self._mailbox.put(_Feed(ticket, port, reader(piece)))
        except OmnistageError as lost:
            if not end.done():
                end.set_exception(lost)
        else:
            self._mailbox.put(_Exhaust(ticket, port))

    async def _leave(self, ticket: int) -> None:
        if self._ended.is_set():
            return
        left: asyncio.Future[None] = self._loop.create_future()
        self._leaving.add(left)
        self._mailbox.put(_Leave(ticket, left))
        await left

    def _live(self) -> None:
        """The thread: from the stepper's making to its end, whatever ends it."""
        with _Reporting(self._tell, self._end):
            stepper = self._make_stepper()
            self._tell(self._begin)
            try:
                while self._obey():
                    ready = [job for job in self._jobs.values() if job.ready]
                    if ready:
                        stepper.step(ready)
                        self._report()
            finally:
                self._jobs.clear()
                stepper.close()

    def _obey(self) -> bool:
        """Carries out what is in the mailbox, waiting for something when no job can be advanced."""
        messages: list[_Message] = []
        if not any(job.ready for job in self._jobs.values()):
            messages.append(self._mailbox.get())
        while not self._mailbox.empty():
            messages.append(self._mailbox.get())
        left: list[asyncio.Future[None]] = []
        for message in messages:
            match message:
                case _Enter():
                    self._enter(message)
                case _Feed() | _Exhaust():
                    self._feed(message)
                case _Leave(ticket=ticket, left=future):
                    self._drop(ticket)
                    left.append(future)
                case _Stop():
                    return False
        if left:
            self._tell(self._settle, left)
        self._report()
        return True

    def _enter(self, message: _Enter) -> None:
        try:
            self._jobs[message.ticket] = message.make()
        except OmnistageError as refusal:
            self._tell(self._deliver, [_Report(message.ticket, [], refusal)])

    def _feed(self, message: _Feed | _Exhaust) -> None:
        job = self._jobs.get(message.ticket)
        if job is None or job.end is not None:
            return
        try:
            if isinstance(message, _Feed):
                job.feed(message.port, message.rows)
            else:
                job.exhaust(message.port)
        except OmnistageError as refusal:
            job.end = refusal

    def _report(self) -> None:
        """Hands over what the jobs have made; those that have ended leave."""
        reports: list[_Report] = []
        for ticket, job in list(self._jobs.items()):
            if job.made or job.end is not None:
                reports.append(_Report(ticket, job.made, job.end))
                job.made = []
            if job.end is not None:
                self._drop(ticket)
        if reports:
            self._tell(self._deliver, reports)

    def _drop(self, ticket: int) -> None:
        job = self._jobs.pop(ticket, None)
        if job is not None:
            job.leave()

    def _tell(self, function: Callable[..., None], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    def _begin(self) -> None:
        self._started.set_result(None)

    def _deliver(self, reports: list[_Report]) -> None:
        for report in reports:
            waiting = self._waiting.get(report.ticket)
            if waiting is None:
                continue
            if not waiting.end.done():
                for payload in report.made:
                    waiting.emit(payload)
            if report.end is None:
                continue
            del self._waiting[report.ticket]
            if waiting.end.done():
                continue
            if isinstance(report.end, EngineResult):
                waiting.end.set_result(report.end)
            else:
                waiting.end.set_exception(report.end)

    def _end(self, failure: BaseException | None) -> None:
        self._failure = failure
        self._ended.set()
        if not self._started.done() and failure is not None:
            self._started.set_exception(_setup_error(failure))
        for waiting in self._waiting.values():
            if not waiting.end.done():
                waiting.end.set_exception(self._failed())
        self._settle(list(self._leaving))

    def _settle(self, left: list[asyncio.Future[None]]) -> None:
        for future in left:
            self._leaving.discard(future)
            if not future.done():
                future.set_result(None)

    def _failed(self) -> EngineFailed:
        why = "it was stopped" if self._failure is None else truncated(repr(self._failure))
        error = EngineFailed(f"the engine has ended: {why}. The stage must be restarted")
        error.__cause__ = self._failure
        return error


class _Reporting:
    """Hands whatever ends the thread over to the event loop.

    An uncaught exception in a thread would otherwise leave every request waiting.
    """

    def __init__(
        self,
        tell: Callable[..., None],
        end: Callable[[BaseException | None], None],
    ) -> None:
        self._tell = tell
        self._end = end

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._tell(self._end, error)
        return True


def _setup_error(failure: BaseException) -> OmnistageError:
    if isinstance(failure, OmnistageError):
        return failure
    error = SetupError(
        f"the engine cannot be loaded: {type(failure).__name__}: {truncated(str(failure))}"
    )
    error.__cause__ = failure
    return error
