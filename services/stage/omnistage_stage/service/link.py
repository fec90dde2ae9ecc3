"""One link: a loop around the acceptor's state machine.

One task reads frames, one writes what the sessions have ready, and each running request has one; all
in one task group, so that the end of the link, however it comes, ends them all. Requests on different
links meet only in admission and in the engine.
"""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from functools import partial

import structlog

from omnistage_common.errors import DeadlineExceeded, OmnistageError
from omnistage_common.ids import RequestNumber
from omnistage_common.links.frames import (
    Credit,
    FromOpener,
    FromReplica,
    Open,
    Status,
)
from omnistage_common.links.protocol import Acceptor
from omnistage_stage.service.admission import Place
from omnistage_stage.service.replica import Replica
from omnistage_stage.service.session import Session

__all__ = ["Link"]

_log = structlog.get_logger()


class Link:
    """The replica's end of one stream."""

    def __init__(self, replica: Replica, *, changed: Callable[[], None]) -> None:
        self._replica = replica
        self._changed = changed
        self._acceptor = Acceptor()
        self._sessions: dict[RequestNumber, Session] = {}
        self._tasks: dict[RequestNumber, asyncio.Task[None]] = {}
        self._places: dict[RequestNumber, Place] = {}
        self._expiries: dict[RequestNumber, asyncio.TimerHandle] = {}
        self._ready: dict[Session, None] = {}
        self._news: list[FromReplica] = []
        self._wake = asyncio.Event()
        self._finished = False

    @property
    def open_requests(self) -> int:
        """Requests that are not closed, among them ended ones whose tensors are held."""
        return len(self._acceptor)

    async def run(
        self,
        incoming: AsyncIterable[list[FromOpener]],
        send: Callable[[list[FromReplica]], Awaitable[None]],
    ) -> None:
        """Serves the link until the peer closes it.

        Raises:
            ProtocolViolation: The peer broke the frame protocol.
        """
        lifecycle = self._replica.lifecycle
        lifecycle.listen(self._announce)
        self._announce()
        try:
            async with asyncio.TaskGroup() as group:
                reader = group.create_task(self._read(incoming, group), name="link reader")
                await self._write(send)
                reader.cancel()
                for task in self._tasks.values():
                    task.cancel()
        except* OmnistageError as broken:
            raise broken.exceptions[0] from None
        finally:
            lifecycle.unlisten(self._announce)
            for expiry in self._expiries.values():
                expiry.cancel()
            for session in self._sessions.values():
                self._let_go(session)

    def finish(self) -> None:
        """Ends the link once everything that is ready has been written."""
        self._finished = True
        self._wake.set()

    async def _read(
        self, incoming: AsyncIterable[list[FromOpener]], group: asyncio.TaskGroup
    ) -> None:
        async for frames in incoming:
            for frame in frames:
                if self._acceptor.receive(frame):
                    self._handle(frame, group)
        self.finish()

    def _announce(self) -> None:
        replica = self._replica
        self._news.append(
            Status(
                phase=replica.lifecycle.phase,
                message=replica.lifecycle.message,
                incarnation=replica.incarnation,
                host=replica.host,
            )
        )
        self._wake.set()

    def _handle(self, frame: FromOpener, group: asyncio.TaskGroup) -> None:
        if isinstance(frame, Open):
            self._open(frame, group)
        elif isinstance(frame, Credit):
            session = self._sessions.get(frame.request)
            if session is not None:
                session.credited()
        else:
            self._drop(frame.request)

    def _open(self, frame: Open, group: asyncio.TaskGroup) -> None:
        session = Session(
            frame=frame,
            owner=(id(self), frame.request),
            plane=self._replica.plane,
            acceptor=self._acceptor,
            wake=self._mark,
        )
        self._sessions[frame.request] = session
        refusal = self._replica.lifecycle.refusal()
        if refusal is None and frame.deadline.passed:
            refusal = DeadlineExceeded("the deadline passed before the stage was reached")
        if refusal is None:
            try:
                place = self._replica.admission.enter()
            except OmnistageError as full:
                refusal = full
        if refusal is not None:
            self._conclude(session, refusal)
            return
        task = group.create_task(self._serve(session, place), name=frame.request_id)
        self._tasks[frame.request] = task
        self._places[frame.request] = place
        task.add_done_callback(partial(self._served, frame.request))

    def _served(self, number: RequestNumber, _: asyncio.Task[None]) -> None:
        del self._tasks[number]
        self._places.pop(number).leave()

    async def _serve(self, session: Session, place: Place) -> None:
        deadline = session.frame.deadline
        timer = asyncio.timeout_at(deadline.monotonic)
        try:
            async with timer:
                result = await self._replica.serve(session, place)
        except TimeoutError:
            late = DeadlineExceeded(
                f"stage {self._replica.plan.name} did not finish before the request's deadline"
            )
            self._conclude(session, late)
        except OmnistageError as error:
            self._conclude(session, error)
        else:
            session.finish(result)
            self._replica.metrics.ended(session.usage)

    def _conclude(self, session: Session, error: OmnistageError) -> None:
        session.finish(error)
        self._replica.metrics.failed(error)

    def _drop(self, number: RequestNumber) -> None:
        session = self._sessions.pop(number, None)
        if session is None:
            return
        self._ready.pop(session, None)
        task = self._tasks.get(number)
        if task is not None:
            self._places[number].withdraw()
            task.cancel()
        expiry = self._expiries.pop(number, None)
        if expiry is not None:
            expiry.cancel()
        self._let_go(session)
        self._changed()

    def _let_go(self, session: Session) -> None:
        self._replica.plane.release_owner(session.owner)
        if not session.finished:
            self._replica.metrics.cancelled()

    def _mark(self, session: Session) -> None:
        self._ready[session] = None
        self._wake.set()

    async def _write(self, send: Callable[[list[FromReplica]], Awaitable[None]]) -> None:
        while not self._finished or self._news or self._ready:
            await self._wake.wait()
            # One more turn of the loop: whatever this turn makes ready leaves in the same message.
            await asyncio.sleep(0)
            self._wake.clear()
            frames = self._collect()
            await send(frames)

    def _collect(self) -> list[FromReplica]:
        frames, self._news = self._news, []
        sessions, self._ready = self._ready, {}
        for session in sessions:
            frames += session.take_frames()
            number = session.frame.request
            if self._acceptor.state(number) is None:
                self._sessions.pop(number, None)
                self._changed()
            elif session.finished:
                self._expire_at_deadline(session)
        return frames

    def _expire_at_deadline(self, session: Session) -> None:
        """Sees to a request that has ended and waits for its peer: for Release, or for Credit."""
        number = session.frame.request
        if number not in self._expiries:
            loop = asyncio.get_running_loop()
            when = session.frame.deadline.monotonic
            self._expiries[number] = loop.call_at(when, self._expire, number)

    def _expire(self, number: RequestNumber) -> None:
        self._acceptor.expire(number)
        self._drop(number)
