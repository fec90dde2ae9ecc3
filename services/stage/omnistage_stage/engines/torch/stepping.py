"""The one thread that owns a model and steps all running requests, seen from asyncio.

What the model makes for one request is a `Job`: it lives in the thread, is fed what arrives for its
request, and says whether the next step can do something for it. A `Stepper` advances all such jobs
at once. A job that waits for input holds up nobody; when all wait, the thread blocks on its mailbox
and costs nothing. Jobs join and leave between any two steps.

The event loop hears back by at most one callback per step, which carries what was made for every
request. If a step raises, the thread ends and every request fails, now and later. What is wrong with
one request alone is an `OmnistageError` from its job's own methods and fails that request only.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from omnistage_common.errors import OmnistageError
from omnistage_common.payloads import Payload
from omnistage_stage.engines.model_thread import ModelThread
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
        self._thread: ModelThread[_Message] = ModelThread(self._live, at_end=self._fail, name=name)
        self._jobs: dict[int, J] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._tickets = 0

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
        await self._thread.start()

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
        if self._thread.ended:
            raise self._thread.failed()
        self._tickets += 1
        ticket = self._tickets
        end: asyncio.Future[EngineResult] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = _Waiting(emit, end)
        self._thread.put(_Enter(ticket, make))
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
                await self._thread.release(partial(_Leave, ticket))

    async def stop(self) -> None:
        """Closes the stepper and ends the thread; running requests fail."""
        await self._thread.stop(_Stop())

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
                self._thread.put(_Feed(ticket, port, reader(piece)))
        except OmnistageError as lost:
            if not end.done():
                end.set_exception(lost)
        else:
            self._thread.put(_Exhaust(ticket, port))

    def _live(self) -> None:
        """The life of the thread: from the stepper's making to its closing."""
        stepper = self._make_stepper()
        self._thread.begun()
        try:
            while self._obey():
                if ready := [job for job in self._jobs.values() if job.ready]:
                    stepper.step(ready)
                    self._report()
        finally:
            self._jobs.clear()
            stepper.close()

    def _obey(self) -> bool:
        """Carries out what is in the mailbox, waiting for something when no job can be advanced."""
        left: list[asyncio.Future[None]] = []
        for message in self._thread.take(wait=not any(job.ready for job in self._jobs.values())):
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
            self._thread.released(left)
        self._report()
        return True

    def _enter(self, message: _Enter) -> None:
        try:
            self._jobs[message.ticket] = message.make()
        except OmnistageError as refusal:
            self._thread.tell(self._deliver, [_Report(message.ticket, [], refusal)])

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
            self._thread.tell(self._deliver, reports)

    def _drop(self, ticket: int) -> None:
        job = self._jobs.pop(ticket, None)
        if job is not None:
            job.leave()

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

    def _fail(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.end.done():
                waiting.end.set_exception(self._thread.failed())
