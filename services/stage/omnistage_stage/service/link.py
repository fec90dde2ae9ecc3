"""One link: a loop around the acceptor's state machine.

One task reads frames, one writes what the requests have ready, and each that computes has one; all in
one task group, so that the end of the link, however it comes, ends them all. Requests on different
links meet in admission, in the engine, and where a consumer comes for an outlet.
"""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from functools import partial

import structlog
from msgspec import Struct

from omnistage_common.errors import DeadlineExceeded, OmnistageError, TensorLost
from omnistage_common.ids import RequestNumber
from omnistage_common.links.frames import (
    Credit,
    FromOpener,
    FromReplica,
    Open,
    Status,
    Subscribe,
)
from omnistage_common.links.protocol import Acceptor
from omnistage_stage.service.admission import Place
from omnistage_stage.service.intake import Intake
from omnistage_stage.service.replica import Replica
from omnistage_stage.service.session import Session
from omnistage_stage.service.subscriptions import Subscription

__all__ = ["Link"]

_log = structlog.get_logger()


class _Run(Struct, frozen=True, kw_only=True):
    """A request that computes, or waits for its turn."""

    task: asyncio.Task[None]
    session: Session
    place: Place
    intake: Intake | None
    """None for a request without inlets."""


class Link:
    """The replica's end of one stream."""

    def __init__(self, replica: Replica, *, changed: Callable[[], None]) -> None:
        self._replica = replica
        self._changed = changed
        self._acceptor = Acceptor()
        self._requests: dict[RequestNumber, Session | Subscription] = {}
        self._runs: dict[RequestNumber, _Run] = {}
        self._expiries: dict[RequestNumber, asyncio.TimerHandle] = {}
        self._ready: dict[Session | Subscription, None] = {}
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
                for running in self._runs.values():
                    running.task.cancel()
        except* OmnistageError as broken:
            raise broken.exceptions[0] from None
        finally:
            lifecycle.unlisten(self._announce)
            for number in tuple(self._requests):
                self._forget(number)

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
        refusal = replica.lifecycle.refusal()
        if refusal is not None:
            for request in self._requests.values():
                if isinstance(request, Subscription) and request.waits:
                    request.fail(refusal)

    def _handle(self, frame: FromOpener, group: asyncio.TaskGroup) -> None:
        if isinstance(frame, Open):
            self._open(frame, group)
        elif isinstance(frame, Credit):
            request = self._requests.get(frame.request)
            if request is not None:
                request.credited(frame.frames)
        elif isinstance(frame, Subscribe):
            self._subscribe(frame)
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
        self._requests[frame.request] = session
        try:
            if frame.outlets:
                session.offer(self._replica.outlets)
            place, intake = self._admit(frame)
        except OmnistageError as refusal:
            self._conclude(session, refusal)
            return
        serving = self._serve(session, place, intake)
        task = group.create_task(serving, name=frame.request_id)
        self._runs[frame.request] = _Run(task=task, session=session, place=place, intake=intake)
        task.add_done_callback(partial(self._served, frame.request))

    def _admit(self, frame: Open) -> tuple[Place, Intake | None]:
        """A place for a request, and its subscriptions, if it has any.

        Raises:
            OmnistageError: Why it is refused; nothing is kept for it then.
        """
        self._check_welcome(frame)
        place = self._replica.admission.enter()
        try:
            return place, self._intake(frame) if frame.inlets else None
        except OmnistageError:
            place.leave()
            raise

    def _check_welcome(self, frame: Open | Subscribe) -> None:
        refusal = self._replica.lifecycle.refusal()
        if refusal is not None:
            raise refusal
        if frame.deadline.passed:
            raise DeadlineExceeded("the deadline passed before the stage was reached")

    def _intake(self, frame: Open) -> Intake:
        replica = self._replica
        intake = Intake(
            frame.inlets, deadline=frame.deadline, plane=replica.plane, peers=replica.peers
        )
        intake.open()
        return intake

    def _served(self, number: RequestNumber, _: asyncio.Task[None]) -> None:
        run = self._runs.pop(number)
        run.place.leave()
        run.session.let_inputs_go()
        if run.intake is not None:
            run.intake.close()

    async def _serve(self, session: Session, place: Place, intake: Intake | None) -> None:
        deadline = session.frame.deadline
        timer = asyncio.timeout_at(deadline.monotonic)
        try:
            async with timer:
                result = await self._replica.serve(session, place, intake)
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

    def _subscribe(self, frame: Subscribe) -> None:
        subscription = Subscription(
            frame, acceptor=self._acceptor, outlets=self._replica.outlets, wake=self._mark
        )
        self._requests[frame.request] = subscription
        try:
            if frame.incarnation != self._replica.incarnation:
                raise TensorLost(
                    "the producer of this stream is gone: this is another life of its process"
                )
            subscription.open()
            if subscription.waits:
                self._check_welcome(frame)
        except OmnistageError as refusal:
            subscription.fail(refusal)
        else:
            self._expire_at_deadline(subscription)

    def _drop(self, number: RequestNumber) -> None:
        run = self._runs.get(number)
        if run is not None:
            run.place.withdraw()
            run.task.cancel()
        self._forget(number)
        self._changed()

    def _forget(self, number: RequestNumber) -> None:
        """A request is closed, by whichever end."""
        request = self._requests.pop(number, None)
        if request is None:
            return
        self._ready.pop(request, None)
        expiry = self._expiries.pop(number, None)
        if expiry is not None:
            expiry.cancel()
        if isinstance(request, Session) and not request.finished:
            self._replica.metrics.cancelled()
        request.close()

    def _mark(self, request: Session | Subscription) -> None:
        self._ready[request] = None
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
        requests, self._ready = self._ready, {}
        for request in requests:
            frames += request.take_frames()
            number = request.frame.request
            if self._acceptor.state(number) is None:
                self._forget(number)
                self._changed()
            elif request.finished:
                self._expire_at_deadline(request)
        return frames

    def _expire_at_deadline(self, request: Session | Subscription) -> None:
        """Sees to a request that waits for its peer, or for another one's."""
        number = request.frame.request
        if number not in self._expiries:
            loop = asyncio.get_running_loop()
            when = request.frame.deadline.monotonic
            self._expiries[number] = loop.call_at(when, self._expire, number)

    def _expire(self, number: RequestNumber) -> None:
        if not self._requests[number].expire():
            self._acceptor.expire(number)
            self._drop(number)
