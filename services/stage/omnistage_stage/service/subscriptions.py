"""The two ends of a stream edge within its producer: what a request offers, and who came for it.

An `Offer` is the request's end: the outbox of one consumer. A `Subscription` is the consumer's end:
a request of its own on the consumer's link, which may be there before the offer is. The link asks the
subscription for frames; the subscription has none of its own but the one that ends it.
"""

from collections.abc import Callable

from omnistage_common.errors import DeadlineExceeded, OmnistageError
from omnistage_common.ids import OutputName
from omnistage_common.links.frames import (
    FinishReason,
    FromReplica,
    Outlet,
    Subscribe,
    Usage,
)
from omnistage_common.links.protocol import Acceptor, RequestState
from omnistage_stage.service.gathering import Gathering
from omnistage_stage.service.outbox import ChunkedOutbox, Outbox
from omnistage_stage.service.outlets import OutletTable
from omnistage_stage.service.sharing import LeaseShares

__all__ = ["Offer", "Outlets", "Subscription"]


class Offer:
    """One outlet of a request."""

    def __init__(self, outlet: Outlet, *, shares: LeaseShares, closed: Callable[[], None]) -> None:
        self.token = outlet.token
        self._outputs = frozenset(outlet.outputs)
        self.outbox = _new_outbox(outlet, shares)
        self.finished = False
        """Whether nothing more is made."""
        self._closed = closed
        self._subscription: Subscription | None = None
        self._error: OmnistageError | None = None

    @property
    def closed(self) -> bool:
        """Whether its consumer has got everything, or was lost, or was told that all is lost."""
        return self.outbox.closed

    def wants(self, name: OutputName) -> bool:
        """Whether an output is for it."""
        return name in self._outputs and not self.outbox.closed

    def join(self, subscription: "Subscription") -> None:
        """The consumer is there."""
        self._subscription = subscription
        if self._error is None:
            subscription.attach(self)
        else:
            subscription.fail(self._error)

    def finish(self) -> None:
        """The request was computed: what is here is all there will be."""
        self.finished = True
        if not self.closed:
            self.outbox.finish()
            if self._subscription is not None:
                self._subscription.wake()

    def fail(self, error: OmnistageError) -> None:
        """The request is lost; so is what the consumer has not got yet."""
        if not self.closed:
            self._error = error
            self.outbox.close()
            if self._subscription is not None:
                self._subscription.fail(error)

    def left(self) -> None:
        """The consumer is gone, whether it got everything or not."""
        self._subscription = None
        if not self.closed:
            self.outbox.close()
            self._closed()


def _new_outbox(outlet: Outlet, shares: LeaseShares) -> Outbox:
    if outlet.first_frames == outlet.frames == 1:
        return Outbox(shares=shares)
    gathering = Gathering(first_frames=outlet.first_frames, frames=outlet.frames)
    return ChunkedOutbox(gathering, shares=shares)


Outlets = OutletTable[Offer, "Subscription"]
"""The outlets of one replica."""


class Subscription:
    """A consumer that came for an outlet."""

    def __init__(
        self,
        frame: Subscribe,
        *,
        acceptor: Acceptor,
        outlets: Outlets,
        wake: Callable[["Subscription"], None],
    ) -> None:
        self.frame = frame
        self._acceptor = acceptor
        self._outlets = outlets
        self._wake = wake
        self._offer: Offer | None = None
        self._error: OmnistageError | None = None

    def open(self) -> None:
        """Looks for its outlet, and waits for it if it is not there.

        Raises:
            InvalidRequest: Another consumer came before.
            TooManyRequests: Too many wait.
            OmnistageError: The request that had it is over; why.
        """
        offer = self._outlets.claim(self.frame.token, self)
        if offer is not None:
            offer.join(self)

    @property
    def waits(self) -> bool:
        """Whether the request that has its outlet has not come yet."""
        return self._offer is None and self._error is None

    @property
    def finished(self) -> bool:
        """Whether all that will come of it is there."""
        return self._error is not None or (self._offer is not None and self._offer.finished)

    def attach(self, offer: Offer) -> None:
        """Its outlet is there."""
        self._offer = offer
        offer.outbox.attach(self._acceptor, self.frame.request, self.wake)
        if offer.finished:
            self.wake()

    def wake(self) -> None:
        """Something can be sent."""
        self._wake(self)

    def fail(self, error: OmnistageError) -> None:
        """It ends badly."""
        self._error = error
        self.wake()

    def credited(self, frames: int) -> None:
        """See `Outbox.credited`."""
        if self._offer is not None:
            self._offer.outbox.credited(frames)

    def take_frames(self) -> list[FromReplica]:
        """What can be sent now, in order."""
        number = self.frame.request
        ending: FromReplica | None = None
        frames: list[FromReplica] = []
        if self._error is not None:
            if self._acceptor.state(number) is RequestState.OPEN:
                ending = self._acceptor.fail(number, self._error)
            else:
                self._acceptor.expire(number)
        elif self._offer is not None:
            frames += self._offer.outbox.take()
            over = self._offer.finished and self._offer.outbox.empty
            if over and self._acceptor.state(number) is RequestState.OPEN:
                ending = self._acceptor.end(number, FinishReason.NONE, Usage())
        return frames if ending is None else [*frames, ending]

    def expire(self) -> bool:
        """Its deadline has passed; whether there is a frame that says so."""
        if self._acceptor.state(self.frame.request) is not RequestState.OPEN:
            return False
        what = "the request that has this outlet did not come" if self.waits else "not all came"
        self.fail(DeadlineExceeded(f"{what} before the deadline"))
        return True

    def close(self) -> None:
        """The consumer is gone, or has got all it wanted. Idempotent."""
        self._outlets.leave(self.frame.token, self)
        if self._offer is not None:
            self._offer.left()
