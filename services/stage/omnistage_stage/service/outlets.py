"""Where outlets and the consumers that come for them meet: a table of tokens, without I/O.

A consumer finds the producer by another connection than the request does, so either may come first.

                 offer       claim       leave       withdraw
    (unknown)    OFFERED     AWAITED
    AWAITED      TAKEN                   forgotten
    OFFERED                  TAKEN                   LOST
    TAKEN                                CLOSED      forgotten
    CLOSED                                           forgotten
    LOST                     forgotten

`offer` and `withdraw` are the producing request's, `claim` and `leave` the consumer's. An outlet has
one consumer in its life: it stays in the table, CLOSED, as long as its request is known, so that a
second one is told. A consumer that comes after its request has failed is told why, if not too many
others failed since. Those who wait for a request that never comes end by their own deadlines. Both are
as many as were allowed.
"""

from enum import Enum
from typing import Final, Generic, TypeVar

from omnistage_common.errors import InvalidRequest, OmnistageError, TooManyRequests
from omnistage_common.ids import StreamToken

__all__ = ["TRANSITIONS", "OutletEvent", "OutletState", "OutletTable"]

P = TypeVar("P")
C = TypeVar("C")


class OutletState(Enum):
    """Where an outlet is; one that is forgotten has no state."""

    AWAITED = "awaited"
    """Its consumer is there, its request is not."""
    OFFERED = "offered"
    """Its request is there, its consumer is not."""
    TAKEN = "taken"
    """Both are there."""
    CLOSED = "closed"
    """Its consumer has got everything, or was lost."""
    LOST = "lost"
    """Its request is over, and its consumer did not come."""


class OutletEvent(Enum):
    """What happens to an outlet."""

    OFFER = "offer"
    CLAIM = "claim"
    LEAVE = "leave"
    WITHDRAW = "withdraw"


TRANSITIONS: Final[dict[tuple[OutletState | None, OutletEvent], OutletState | None]] = {
    (None, OutletEvent.OFFER): OutletState.OFFERED,
    (None, OutletEvent.CLAIM): OutletState.AWAITED,
    (OutletState.AWAITED, OutletEvent.OFFER): OutletState.TAKEN,
    (OutletState.AWAITED, OutletEvent.LEAVE): None,
    (OutletState.OFFERED, OutletEvent.CLAIM): OutletState.TAKEN,
    (OutletState.OFFERED, OutletEvent.WITHDRAW): OutletState.LOST,
    (OutletState.TAKEN, OutletEvent.LEAVE): OutletState.CLOSED,
    (OutletState.TAKEN, OutletEvent.WITHDRAW): None,
    (OutletState.CLOSED, OutletEvent.WITHDRAW): None,
    (OutletState.LOST, OutletEvent.CLAIM): None,
}
"""None stands for an outlet that nobody knows. What is not in here is somebody's mistake, or comes
too late to matter."""


class _Entry(Generic[P, C]):
    __slots__ = ("consumer", "producer", "state", "why")

    def __init__(self) -> None:
        self.state: OutletState | None = None
        self.producer: P | None = None
        self.consumer: C | None = None
        self.why: OmnistageError | None = None
        """Why it is LOST."""


class OutletTable(Generic[P, C]):
    """The outlets of one replica; `P` stands for the producing end, `C` for the consuming one.

    Args:
        max_waiting: Consumers that may wait for requests that have not come, and lost outlets that
            are remembered.
    """

    def __init__(self, *, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._waiting = 0
        self._entries: dict[StreamToken, _Entry[P, C]] = {}
        self._lost: dict[StreamToken, None] = {}
        """In the order in which they were lost."""

    def offer(self, token: StreamToken, producer: P) -> C | None:
        """A request has this outlet; the consumer that waits for it, if one does.

        Raises:
            InvalidRequest: Another request has it already.
        """
        entry = self._entries.get(token) or _Entry[P, C]()
        if not self._step(token, entry, OutletEvent.OFFER):
            raise InvalidRequest("two outlets have the same token", field="outlets")
        entry.producer = producer
        return entry.consumer

    def claim(self, token: StreamToken, consumer: C) -> P | None:
        """A consumer comes for an outlet; its producing end, if that is there.

        Raises:
            InvalidRequest: Another consumer came before.
            TooManyRequests: As many as may wait do so already.
            OmnistageError: Its request is over; why.
        """
        entry = self._entries.get(token) or _Entry[P, C]()
        if entry.state is None and self._waiting >= self._max_waiting:
            raise TooManyRequests(
                f"{self._max_waiting} consumers wait for requests that have not come; try again"
            )
        if not self._step(token, entry, OutletEvent.CLAIM):
            raise InvalidRequest("another consumer came for this outlet before", field="token")
        if entry.why is not None:
            raise entry.why
        entry.consumer = consumer
        return entry.producer

    def leave(self, token: StreamToken, consumer: C) -> None:
        """A consumer does not want an outlet any more, or has got all of it."""
        entry = self._entries.get(token)
        if entry is not None and entry.consumer is consumer:
            self._step(token, entry, OutletEvent.LEAVE)

    def withdraw(self, token: StreamToken, producer: P, why: OmnistageError) -> None:
        """The request that had the outlet is over.

        Args:
            token: Of the outlet.
            producer: The request's end of it.
            why: What a consumer is told that comes later.
        """
        entry = self._entries.get(token)
        if entry is not None and entry.producer is producer:
            self._step(token, entry, OutletEvent.WITHDRAW)
            entry.producer, entry.why = None, why
            if len(self._lost) > self._max_waiting:
                self._forget(next(iter(self._lost)))

    def _forget(self, token: StreamToken) -> None:
        self._entries.pop(token, None)
        self._lost.pop(token, None)

    def state(self, token: StreamToken) -> OutletState | None:
        """Where an outlet is, None for one that nobody knows."""
        entry = self._entries.get(token)
        return None if entry is None else entry.state

    def __len__(self) -> int:
        """Outlets that are known, but for those that are lost."""
        return len(self._entries) - len(self._lost)

    def _step(self, token: StreamToken, entry: _Entry[P, C], event: OutletEvent) -> bool:
        before = entry.state
        if (before, event) not in TRANSITIONS:
            return False
        entry.state = TRANSITIONS[before, event]
        self._waiting += entry.state is OutletState.AWAITED
        self._waiting -= before is OutletState.AWAITED
        if entry.state is None:
            self._forget(token)
        else:
            self._entries[token] = entry
        if entry.state is OutletState.LOST:
            self._lost[token] = None
        return True
