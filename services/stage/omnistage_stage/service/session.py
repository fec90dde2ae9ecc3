"""One request on one replica: what its engine emitted, and who gets it.

The session is what an engine sees as `Outputs`. An output goes to the opener of the request unless it
is withheld, and to every outlet that names it, each with an outbox and credit of its own; a tensor is
published once whoever gets it. The opener hears of the end last: when the engine has returned and every
outlet's consumer has got everything or is lost. Until then its cancel reaches all of them.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial

from omnistage_common.errors import (
    DeadlineExceeded,
    OmnistageError,
    RequestCancelled,
    error_from_code,
)
from omnistage_common.ids import OutputName
from omnistage_common.links.frames import Delivery, End, Error, FromReplica, Open, Progress, Usage
from omnistage_common.links.protocol import Acceptor, RequestState
from omnistage_common.payloads import (
    INLINE_LIMIT,
    Content,
    DeviceTensor,
    Payload,
    PayloadKind,
    Tensor,
    TensorHeader,
    TensorRef,
)
from omnistage_common.tensors import LeaseOwner, Reservation, TensorPlane
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, Place
from omnistage_stage.service.outbox import Outbox
from omnistage_stage.service.placing import InlinePlace, LeasedPlace
from omnistage_stage.service.sharing import LeaseShares
from omnistage_stage.service.subscriptions import Offer, Outlets

__all__ = ["Session"]


class Session:
    """Outputs of one request on their way to links."""

    def __init__(
        self,
        *,
        frame: Open,
        owner: LeaseOwner,
        plane: TensorPlane,
        acceptor: Acceptor,
        wake: Callable[["Session"], None],
    ) -> None:
        self.frame = frame
        self.owner = owner
        self._plane = plane
        self._acceptor = acceptor
        self._wake = wake
        streams = bool(frame.outlets) or frame.credit_releases
        self._shares = LeaseShares(plane) if streams else None
        """None where the end of the request is the end of every lease."""
        self._published = False
        """Whether the tensor plane may hold an output of it."""
        self._fetched = False
        """Whether the tensor plane may hold an input of it."""
        self._withheld = frame.withheld
        self._eager = frame.delivery is Delivery.DELTAS
        self._outbox = Outbox(
            eager=self._eager, shares=self._shares if frame.credit_releases else None
        )
        self._outbox.attach(acceptor, frame.request, self.wake)
        self._offers: tuple[Offer, ...] = ()
        self._outlets: Outlets | None = None
        self._progress: tuple[int, int] | None = None
        self._outcome: EngineResult | OmnistageError | None = None
        self._queued_at = time.monotonic()
        self._started_at = 0.0
        self._first_output_at = 0.0
        self.usage = Usage()

    def wake(self) -> None:
        """Something can be sent to the opener."""
        self._wake(self)

    def offer(self, outlets: Outlets) -> None:
        """Lets the consumers of its outlets come.

        Raises:
            InvalidRequest: An outlet's token is not its own.
        """
        self._outlets = outlets
        shares = self._shares = self._shares or LeaseShares(self._plane)
        for outlet in self.frame.outlets:
            offer = Offer(outlet, shares=shares, closed=self._outlet_closed)
            subscription = outlets.offer(offer.token, offer)
            self._offers = (*self._offers, offer)
            if subscription is not None:
                offer.join(subscription)

    def begin(self) -> float:
        """Notes that the request has its place in the engine; seconds that it has waited for it."""
        self._started_at = time.monotonic()
        return self._started_at - self._queued_at

    async def fetch_inputs(
        self, streams: Mapping[OutputName, AsyncIterator[Payload]]
    ) -> EngineRequest:
        """The request with every tensor at hand.

        Args:
            streams: What arrives while the engine runs.

        Raises:
            TensorLost: An input is gone or is not what was published.
        """
        inputs: dict[OutputName, list[Payload]] = {}
        for item in self.frame.inputs:
            content = item.payload.content
            if isinstance(content, TensorRef):
                self._fetched = True
                content = await self._plane.fetch_to_device(
                    content, owner=(self.owner, "inputs"), deadline=self.frame.deadline
                )
            payload = Payload(kind=item.payload.kind, content=content)
            inputs.setdefault(item.name, []).append(payload)
        return EngineRequest(
            id=self.frame.request_id,
            inputs={name: tuple(payloads) for name, payloads in inputs.items()},
            parameters=self.frame.parameters,
            deadline=self.frame.deadline,
            streams=streams,
        )

    def let_inputs_go(self) -> None:
        """The engine reads them no more."""
        if self._fetched:
            self._plane.release_owner((self.owner, "inputs"))

    def emit(self, name: OutputName, payload: Payload, *, index: int = 0) -> None:
        """See `Outputs.emit`."""
        content = payload.content
        if isinstance(content, Tensor):
            content = self._plane.publish_now(content)
            payload = Payload(kind=payload.kind, content=content)
        if not self._offers and name not in self._withheld:
            self._outbox.append(name, payload, index)
        else:
            for receiver in self._receivers(name):
                receiver.append(name, payload, index)
        self._first_output_at = self._first_output_at or time.monotonic()

    async def put(self, name: OutputName, payload: Payload, *, index: int = 0) -> None:
        """See `Outputs.put`."""
        await self._kept_up(name)
        content = payload.content
        if isinstance(content, Tensor) and self._receivers(name):
            self._published = True
            content = await self._plane.publish(
                content, owner=self.owner, deadline=self.frame.deadline
            )
        self._hand_over(name, payload.kind, index, content)

    async def reserve(
        self,
        name: OutputName,
        kind: PayloadKind,
        header: TensorHeader,
        *,
        index: int = 0,
        on_device: bool = False,
    ) -> Place:
        """See `Outputs.reserve`."""
        wait = partial(self._kept_up, name)
        receive = partial(self._hand_over, name, kind, index)
        if header.length <= INLINE_LIMIT:
            return InlinePlace(header, wait=wait, receive=receive)
        self._published = True
        plane, owner, deadline = self._plane, self.owner, self.frame.deadline
        reservation: Reservation[memoryview] | Reservation[DeviceTensor]
        if on_device and plane.has_device:
            reservation = await plane.reserve_on_device(header, owner=owner, deadline=deadline)
        else:
            reservation = await plane.reserve(header, owner=owner, deadline=deadline)
        return LeasedPlace(reservation, wait=wait, receive=receive)

    async def _kept_up(self, name: OutputName) -> None:
        for receiver in self._receivers(name):
            await receiver.keeps_up()

    def _hand_over(self, name: OutputName, kind: PayloadKind, index: int, content: Content) -> None:
        """Gives an output that can travel to whoever wants it by now."""
        receivers = self._receivers(name)
        if isinstance(content, TensorRef):
            if self._shares is not None:
                self._shares.share(content.lease, len(receivers))
            elif not receivers:
                self._plane.release((content.lease,))
        payload = Payload(kind=kind, content=content)
        for receiver in receivers:
            receiver.append(name, payload, index)
        self._first_output_at = self._first_output_at or time.monotonic()

    def progress(self, done: int, total: int) -> None:
        """See `Outputs.progress`."""
        self._progress = (done, total)
        self._wake(self)

    def _receivers(self, name: OutputName) -> list[Outbox]:
        """Those that want an output now."""
        unwanted = name in self._withheld or self._outbox.closed
        receivers = [] if unwanted else [self._outbox]
        if self._offers:
            receivers += [offer.outbox for offer in self._offers if offer.wants(name)]
        return receivers

    def finish(self, outcome: EngineResult | OmnistageError) -> None:
        """Notes how the request ended; the frame that says so follows the outputs."""
        result = outcome if isinstance(outcome, EngineResult) else EngineResult()
        now = time.monotonic()
        started = self._started_at or now
        first = self._first_output_at or now
        self._outcome = outcome
        self.usage = Usage(
            input_tokens=result.input_tokens,
            output_tokens=result.output_tokens,
            queue_us=_microseconds(started - self._queued_at),
            run_us=_microseconds(now - started),
            first_output_us=_microseconds(first - started),
        )
        for offer in self._offers:
            if isinstance(outcome, EngineResult):
                offer.finish()
            else:
                offer.fail(outcome)
        self._wake(self)

    @property
    def finished(self) -> bool:
        """Whether it is known how the request ended."""
        return self._outcome is not None

    @property
    def _streaming(self) -> bool:
        """Whether a consumer has not got everything yet."""
        return any(not offer.closed for offer in self._offers)

    def _outlet_closed(self) -> None:
        if self.finished:
            self._wake(self)

    def credited(self, frames: int) -> None:
        """More Data frames may be sent."""
        self._outbox.credited(frames)
        if self.finished and not self._outbox.empty:
            self._wake(self)

    def take_frames(self) -> list[FromReplica]:
        """What can be sent now, in order."""
        number = self.frame.request
        if isinstance(self._outcome, OmnistageError):
            self._outbox.close()
            self._release()
            return _present(self._acceptor.fail(number, self._outcome))
        frames: list[FromReplica] = []
        if self._progress is not None:
            done, total = self._progress
            self._progress = None
            frames += _present(self._acceptor.progress(number, done, total))
        if self._eager or self._outcome is not None:
            frames += self._outbox.take()
        if self._outcome is not None and self._over:
            reason = self._outcome.finish_reason
            frames += _present(self._acceptor.end(number, reason, self.usage))
        return frames

    @property
    def _over(self) -> bool:
        """Whether an End may follow what was sent."""
        return (
            self._outbox.empty
            and not self._streaming
            and self._acceptor.state(self.frame.request) is RequestState.OPEN
        )

    def expire(self) -> bool:
        """The deadline passed after the engine had returned; whether there is a frame that says so.

        An opener that has not read what is there has closed the request itself; one that was not told
        of the end yet learns why.
        """
        if not self._streaming or isinstance(self._outcome, OmnistageError):
            return False
        self.finish(DeadlineExceeded("not every consumer of a stream edge got all of it in time"))
        return True

    def close(self) -> None:
        """Nobody wants anything of it any more. Idempotent."""
        if self._offers:
            self._withdraw()
        self._outbox.close()
        self._release()

    def _withdraw(self) -> None:
        if isinstance(self._outcome, OmnistageError):
            # Without its traceback, which may hold on to anything, as this may be kept for a while.
            lost = self._outcome
            why = error_from_code(lost.code, lost.message, field=lost.field)
        else:
            why = RequestCancelled("the request was cancelled at the producer of this stream")
        for offer in self._offers:
            if self._outlets is not None:
                self._outlets.withdraw(offer.token, offer, why)
            offer.fail(why)
        self._offers = ()

    def _release(self) -> None:
        if self._published:
            self._plane.release_owner(self.owner)


def _present(frame: End | Error | Progress | None) -> list[FromReplica]:
    return [] if frame is None else [frame]


def _microseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e6))
