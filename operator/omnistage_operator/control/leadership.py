"""Who holds a Lease, and what a candidate does about it: rules without I/O.

The clock of another machine is never compared with ours: a candidate notes when *it* saw the lease
change last, and takes it when nothing changed for the whole lease time since. The algorithm is the
one of client-go's leader election.
"""

from enum import Enum
from typing import Final

import msgspec

from omnistage_common.errors import SetupError

__all__ = ["Candidacy", "Claim", "LeaseRecord", "LeaseTimings"]


class LeaseTimings(msgspec.Struct, frozen=True, kw_only=True):
    """How long a lease lasts; the defaults are client-go's."""

    lease_s: float = 15.0
    """A candidate waits so long without a sign of the holder before it takes over."""
    renew_s: float = 10.0
    """A holder that could not renew for so long stops to write."""
    retry_s: float = 2.0
    """Pause between two tries, of holder and candidate."""

    def __post_init__(self) -> None:
        """Checks that a holder has stopped before another can start."""
        if not self.lease_s > self.renew_s > self.retry_s > 0:
            raise SetupError(
                f"lease {self.lease_s} s must be longer than the renewal {self.renew_s} s, "
                f"and that longer than the retry {self.retry_s} s"
            )


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a lease says."""

    holder: str
    """Identity of the holder; empty when it was given back."""
    duration_s: float
    renewed: str
    """When the holder renewed, by its own clock; only compared with what was seen before."""
    transitions: int = 0
    """How often the holder changed."""


class Claim(Enum):
    """What a candidate does with the lease as it stands."""

    CREATE = "create"
    """There is none."""
    TAKE = "take"
    """It is free, or its holder has given no sign for the whole lease time."""
    RENEW = "renew"
    WAIT = "wait"
    """Another holds it."""


_NO_CHANGE: Final = LeaseRecord(holder="", duration_s=0, renewed="")


class Candidacy:
    """One candidate's view of the lease over time."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self._seen = _NO_CHANGE
        self._seen_at = 0.0

    def claim(self, record: LeaseRecord | None, now: float) -> Claim:
        """What to do with the lease as it was just read.

        Args:
            record: What it says, None when there is none.
            now: Seconds on this process's monotonic clock.
        """
        if record is None:
            return Claim.CREATE
        if record != self._seen:
            self._seen = record
            self._seen_at = now
        if record.holder == self.identity:
            return Claim.RENEW
        if not record.holder or now >= self._seen_at + record.duration_s:
            return Claim.TAKE
        return Claim.WAIT
