"""The opener's end of the link to one replica, whoever opens: a gateway, or a consumer of its outputs.

One stream for all requests, opened once and reopened whenever it breaks. Its break is how a dead
replica is noticed: every request on it fails with `StageUnavailable` in the same event-loop turn; only
one of which the replica sent what it may not fails with `ProtocolViolation`. Frames written within a
turn leave as one message. A request's frames go to its listener in the order
they came; nothing here waits for a listener.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Final, Protocol

import grpc.aio
import structlog
from msgspec import Struct

from omnistage_common.channels import CHANNEL_OPTIONS
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import (
    Draining,
    OmnistageError,
    ProtocolViolation,
    StageUnavailable,
)
from omnistage_common.ids import (
    HostId,
    Incarnation,
    OutputName,
    ReplicaId,
    RequestId,
    RequestNumber,
    StageName,
)
from omnistage_common.links import wire
from omnistage_common.links.batching import messages_of
from omnistage_common.links.frames import (
    Data,
    Delivery,
    End,
    Error,
    FromOpener,
    FromReplica,
    Inlet,
    Open,
    Outlet,
    Phase,
    Progress,
    Status,
    Subscribe,
)
from omnistage_common.links.protocol import Opener
from omnistage_common.payloads import Output, Parameters
from omnistage_protos.stage.v1 import stage_pb2, stage_pb2_grpc

__all__ = ["CREDIT", "NO_STREAMS", "Endpoint", "Listener", "ReplicaLink", "Streams"]

_log = structlog.get_logger()

CREDIT: Final = 32
"""Data frames of one request that may be under way; a slow client stops the stage there."""
FIRST_RETRY: Final = 0.05
LAST_RETRY: Final = 1.0
"""Seconds between attempts to reopen a link that the replica ends again and again."""


if TYPE_CHECKING:
    from collections.abc import Callable

    _Call = grpc.aio.StreamStreamCall[stage_pb2.LinkRequest, stage_pb2.LinkResponse]


class Endpoint(Protocol):
    """Where a replica is."""

    @property
    def stage(self) -> StageName:
        """The stage that it is a replica of."""

    @property
    def replica(self) -> ReplicaId:
        """Its id."""

    @property
    def address(self) -> str:
        """`HOST:PORT`."""


class Listener(Protocol):
    """Whoever opened a request."""

    def received(self, frame: Data | Progress | End | Error) -> None:
        """A frame of the request came, or its link broke, which comes as an Error."""


class Streams(Struct, frozen=True, kw_only=True):
    """What of a request goes past its opener."""

    inlets: tuple[Inlet, ...] = ()
    outlets: tuple[Outlet, ...] = ()
    withheld: tuple[OutputName, ...] = ()
    """Outputs that the opener itself does not want."""
    credit_releases: bool = False
    """Whether the opener has done with the tensors of frames that it grants credit for."""


NO_STREAMS: Final = Streams()


class ReplicaLink:
    """See the module."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.phase: Phase | None = None
        """What the replica last said of itself; None while there is no link."""
        self.host: HostId | None = None
        self.incarnation: Incarnation | None = None
        self.over = False
        """Whether it was kept open once and has ended: nothing that is opened on it gets anywhere."""
        self.on_phase: Callable[[], None] | None = None
        """Called when `phase` has been set."""
        self.on_idle: Callable[[], None] | None = None
        """Called when `idle` has become true."""
        self._opener = Opener()
        self._listeners: dict[RequestNumber, Listener] = {}
        self._outgoing: list[FromOpener] = []
        self._wake = asyncio.Event()

    @property
    def outstanding(self) -> int:
        """Requests that have not ended."""
        return len(self._listeners)

    @property
    def idle(self) -> bool:
        """Whether no request needs this link: all have ended, and nothing of them is held."""
        return not self._listeners and not self._opener

    async def run(self) -> None:
        """Keeps the link open, however often it breaks, until cancelled; then its requests have failed.

        Waits for a replica that is not there yet.
        """
        async with self._channel() as channel:
            stub = stage_pb2_grpc.StageServiceStub(channel)
            retry = FIRST_RETRY
            try:
                while True:
                    began = time.monotonic()
                    await self._until_lost(stub, patient=True)
                    lasted = time.monotonic() - began > LAST_RETRY
                    retry = FIRST_RETRY if lasted else min(retry * 2, LAST_RETRY)
                    await asyncio.sleep(retry)
            finally:
                self._fail_all(drained=False)

    async def run_once(self) -> None:
        """Keeps the link open until it breaks or this is cancelled; then its requests have failed.

        A replica that is not there is one that was lost.
        """
        async with self._channel() as channel:
            try:
                await self._until_lost(stage_pb2_grpc.StageServiceStub(channel), patient=False)
            finally:
                self.over = True
                self._fail_all(drained=False)

    def _channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.endpoint.address, options=CHANNEL_OPTIONS)

    async def _until_lost(
        self, stub: "stage_pb2_grpc.StageServiceAsyncStub", *, patient: bool
    ) -> None:
        """One life of the link; at its end every request on it has failed."""
        why = "ended"
        drained = False
        try:
            await self._converse(stub.Link(wait_for_ready=patient))
            # A replica that drains ends the link by itself, when nothing is open: what it was sent
            # since then it has not seen.
            drained = self.phase is Phase.DRAINING
        except (grpc.aio.AioRpcError, ProtocolViolation) as broken:
            why = _words(broken)
        except asyncio.CancelledError:
            # grpc raises it too when the replica cancelled the stream, as one does that is
            # made to stop; then nobody has asked this task to end.
            if _is_cancelled():
                raise
            why = "cancelled there"
        _log.info("link broke", replica=self.endpoint.replica, error=why)
        self._fail_all(drained=drained)

    async def _converse(self, call: "_Call") -> None:
        writer = asyncio.create_task(self._write(call), name=f"{self.endpoint.replica} writer")
        try:
            while isinstance(message := await call.read(), stage_pb2.LinkResponse):
                for frame in wire.decode_from_replica(message):
                    self._receive(frame)
        finally:
            writer.cancel()
            call.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, call: "_Call") -> None:
        while True:
            await self._wake.wait()
            # One more turn of the loop: whatever this turn opens leaves in the same message.
            await asyncio.sleep(0)
            self._wake.clear()
            frames, self._outgoing = self._outgoing, []
            for message in messages_of(frames, wire.encode_from_opener):
                await call.write(message)

    def _receive(self, frame: FromReplica) -> None:
        try:
            if not self._opener.receive(frame):
                return
        except ProtocolViolation as violation:
            self._blame(frame, violation)
            raise
        if isinstance(frame, Status):
            self._status(frame)
        elif isinstance(frame, Data | Progress):
            self._listeners[frame.request].received(frame)
        else:
            self._listeners.pop(frame.request).received(frame)
            if self.on_idle is not None:
                self._tell_idle(self.on_idle)

    def _tell_idle(self, on_idle: "Callable[[], None]") -> None:
        """A request has ended; perhaps it was the last."""
        if self.idle:
            on_idle()

    def _blame(self, frame: FromReplica, violation: ProtocolViolation) -> None:
        if isinstance(frame, Status):
            return
        listener = self._listeners.pop(frame.request, None)
        if listener is not None:
            replica = self.endpoint.replica
            error = ProtocolViolation(f"replica {replica} broke the protocol: {violation.message}")
            listener.received(Error(request=frame.request, error=error))

    def _status(self, status: Status) -> None:
        self.phase = status.phase
        self.host = status.host
        self.incarnation = status.incarnation
        _log.info("replica", replica=self.endpoint.replica, phase=status.phase.value)
        if self.on_phase is not None:
            self.on_phase()

    def _fail_all(self, *, drained: bool) -> None:
        self.phase = None
        self._opener.close()
        self._outgoing.clear()
        listeners, self._listeners = self._listeners, {}
        replica = self.endpoint.replica
        for number, listener in listeners.items():
            error = (
                Draining(f"replica {replica} went out of service; try again")
                if drained
                else StageUnavailable(f"replica {replica} was lost while it worked on this request")
            )
            listener.received(Error(request=number, error=error))
        if self.on_phase is not None:
            self.on_phase()
        if self.on_idle is not None:
            self._tell_idle(self.on_idle)

    def open(
        self,
        listener: Listener,
        *,
        request_id: RequestId,
        deadline: Deadline,
        delivery: Delivery,
        inputs: tuple[Output, ...],
        parameters: Parameters,
        streams: Streams = NO_STREAMS,
    ) -> RequestNumber:
        """Opens a request on the replica; its frames go to the listener until it ends."""
        return self._opened(
            listener,
            Open(
                request=self._opener.next_number(),
                request_id=request_id,
                deadline=deadline,
                credit=CREDIT,
                delivery=delivery,
                inputs=inputs,
                parameters=parameters,
                inlets=streams.inlets,
                outlets=streams.outlets,
                withheld=streams.withheld,
                credit_releases=streams.credit_releases,
            ),
        )

    def subscribe(self, listener: Listener, inlet: Inlet, deadline: Deadline) -> RequestNumber:
        """Comes for an outlet of the replica; its frames go to the listener until it ends."""
        return self._opened(
            listener,
            Subscribe(
                request=self._opener.next_number(),
                token=inlet.token,
                deadline=deadline,
                credit=CREDIT,
                incarnation=inlet.incarnation,
            ),
        )

    def _opened(self, listener: Listener, frame: Open | Subscribe) -> RequestNumber:
        self._opener.open(frame)
        self._listeners[frame.request] = listener
        self._send(frame)
        return frame.request

    def grant(self, number: RequestNumber, frames: int) -> None:
        """That many Data frames of the request have been dealt with."""
        frame = self._opener.credit(number, frames)
        if frame is not None:
            self._send(frame)

    def close(self, number: RequestNumber, reason: str) -> None:
        """Ends the request's life on the replica, however far it is; nothing answers."""
        self._listeners.pop(number, None)
        frame = self._opener.release(number) or self._opener.cancel(number, reason)
        if frame is not None:
            self._send(frame)
        if self.on_idle is not None:
            self._tell_idle(self.on_idle)

    def _send(self, frame: FromOpener) -> None:
        self._outgoing.append(frame)
        self._wake.set()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _words(broken: OmnistageError | grpc.aio.AioRpcError) -> str:
    if isinstance(broken, grpc.aio.AioRpcError):
        return f"{broken.code().name}: {broken.details()}"
    return broken.message
