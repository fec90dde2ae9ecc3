"""How long a producer keeps a tensor: the life cycle of a lease, and the table of those that live.

There is no clock, no memory and no event loop in here: times come in as numbers and what ended goes
out as values, so that every order of events can be tested. A lease ends once, by release, by the
end of its owner or by its deadline, whichever comes first; ending it again is not an error, because
both ends of a link may do so.

    FILLING ── seal ──▶ HELD ── end ──▶ ENDED
       └────── end ───▶ ABANDONED ── seal ──▶ ENDED

A lease that ends while its bytes are being written is ABANDONED until the writer has stopped: the
memory of a lease may be used again when it is ENDED and not before.
"""

from collections.abc import Hashable, Iterable, Iterator
from enum import Enum
from itertools import count
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from omnistage_common.ids import LeaseId, TensorToken

__all__ = [
    "TRANSITIONS",
    "Lease",
    "LeaseEvent",
    "LeaseOwner",
    "LeaseState",
    "LeaseStatistics",
    "LeaseTable",
]

LeaseOwner = Hashable
"""Whatever tells one request from another, e.g. a link and the number of a request on it."""


class LeaseState(Enum):
    """Where a lease is in its life."""

    FILLING = "filling"
    """Its bytes are being written; no reference to it exists."""
    HELD = "held"
    """Its reference is out; consumers may read."""
    ABANDONED = "abandoned"
    """Nobody wants it any more, and its writer has not stopped yet."""
    ENDED = "ended"
    """Its memory may be used again."""


class LeaseEvent(Enum):
    """What happens to a lease."""

    SEAL = "seal"
    """The writer stopped."""
    END = "end"
    """Released, owner gone, or deadline passed."""


TRANSITIONS: Final[dict[tuple[LeaseState, LeaseEvent], LeaseState]] = {
    (LeaseState.FILLING, LeaseEvent.SEAL): LeaseState.HELD,
    (LeaseState.FILLING, LeaseEvent.END): LeaseState.ABANDONED,
    (LeaseState.HELD, LeaseEvent.END): LeaseState.ENDED,
    (LeaseState.ABANDONED, LeaseEvent.SEAL): LeaseState.ENDED,
    (LeaseState.ABANDONED, LeaseEvent.END): LeaseState.ABANDONED,
}
"""What cannot happen is not in here. An ENDED lease is no longer in the table."""


class Lease(Struct, frozen=True, kw_only=True):
    """One lease, as it was when it was asked for."""

    id: LeaseId
    owner: LeaseOwner
    offset: int
    """Of its block in the slab."""
    length: int
    """Bytes of the tensor."""
    deadline: float
    """Monotonic seconds."""
    token: TensorToken
    """What a reader must show."""
    state: LeaseState = LeaseState.FILLING


class LeaseStatistics(Struct, frozen=True, kw_only=True):
    """How many leases are in each state."""

    filling: int
    held: int
    abandoned: int


class LeaseTable:
    """The leases that have not ended.

    Args:
        ids: Their numbers to be: positive, none twice.
    """

    def __init__(self, ids: Iterator[int] | None = None) -> None:
        self._ids = ids or count(1)
        self._leases: dict[LeaseId, Lease] = {}
        self._owned: dict[LeaseOwner, set[LeaseId]] = {}

    def grant(
        self,
        *,
        owner: LeaseOwner,
        offset: int,
        length: int,
        deadline: float,
        token: TensorToken,
    ) -> Lease:
        """A new lease, FILLING. Its id was never used before and is positive."""
        lease = Lease(
            id=LeaseId(next(self._ids)),
            owner=owner,
            offset=offset,
            length=length,
            deadline=deadline,
            token=token,
        )
        self._leases[lease.id] = lease
        self._owned.setdefault(owner, set()).add(lease.id)
        return lease

    def seal(self, lease: LeaseId, length: int | None = None) -> Lease:
        """Says that the writer of a FILLING or ABANDONED lease stopped; the lease after that.

        Args:
            lease: Which.
            length: Bytes of the tensor, where they are fewer than was thought.

        Raises:
            KeyError: The lease was sealed before.
        """
        found = self._leases[lease]
        if length is not None:
            found = replace(found, length=length)
        return self._step(found, LeaseEvent.SEAL)

    def get(self, lease: LeaseId) -> Lease | None:
        """The lease as it is now; None when it has ended or never was."""
        return self._leases.get(lease)

    def release(self, leases: Iterable[LeaseId]) -> list[Lease]:
        """Ends leases; those that had ended already are passed over. Returns what this ended."""
        wanted = (self._leases.get(lease) for lease in leases)
        return [self._end(lease) for lease in wanted if lease is not None and _lives(lease)]

    def release_owner(self, owner: LeaseOwner) -> list[Lease]:
        """Ends every lease of an owner. Returns what this ended, oldest first."""
        return self.release(sorted(self._owned.get(owner, ())))

    def expire(self, now: float) -> list[Lease]:
        """Ends every lease whose deadline is not later than `now`. Returns what this ended."""
        return self.release([x.id for x in self._leases.values() if x.deadline <= now])

    def release_all(self) -> list[Lease]:
        """Ends every lease. Returns what this ended."""
        return self.release(list(self._leases))

    @property
    def idle(self) -> bool:
        """Whether no lease lives."""
        return not self._owned

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline of a lease that lives; None when there is none."""
        return min((x.deadline for x in self._leases.values() if _lives(x)), default=None)

    def statistics(self) -> LeaseStatistics:
        """Counted from what is there."""
        states = [lease.state for lease in self._leases.values()]
        return LeaseStatistics(
            filling=states.count(LeaseState.FILLING),
            held=states.count(LeaseState.HELD),
            abandoned=states.count(LeaseState.ABANDONED),
        )

    def _end(self, lease: Lease) -> Lease:
        owned = self._owned[lease.owner]
        owned.discard(lease.id)
        if not owned:
            del self._owned[lease.owner]
        return self._step(lease, LeaseEvent.END)

    def _step(self, lease: Lease, event: LeaseEvent) -> Lease:
        after = replace(lease, state=TRANSITIONS[lease.state, event])
        if after.state is LeaseState.ENDED:
            del self._leases[lease.id]
        else:
            self._leases[lease.id] = after
        return after


def _lives(lease: Lease) -> bool:
    return lease.state is not LeaseState.ABANDONED
