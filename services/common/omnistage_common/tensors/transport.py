"""What a transport is: one way of reading a tensor that another process holds.

The plane owns the slab, the leases and the check of what arrived; a transport only says where a
block of the slab is to be found by others, and gets at the bytes behind a reference. It knows
nothing of requests, owners or deadlines: a read that takes time is cancelled like any coroutine.
"""

from enum import Enum
from typing import Protocol

from omnistage_common.ids import Incarnation
from omnistage_common.payloads import SharedMemoryLocation, TensorRef

__all__ = ["Location", "Transport", "TransportKind"]

Location = SharedMemoryLocation
"""Where a tensor may be; a union when there is a second transport."""


class TransportKind(Enum):
    """Ways to move a tensor's bytes; the value is its name in metrics."""

    INLINE = "inline"
    """Within the control message. The plane does this itself."""
    SHARED_MEMORY = "shared_memory"
    """A segment mapped by both processes of one host."""


class Transport(Protocol):
    """One way of reading tensors of other processes."""

    @property
    def kind(self) -> TransportKind:
        """Which way."""

    def can_reach(self, location: Location) -> bool:
        """Whether this process can read there."""

    async def read(self, ref: TensorRef) -> memoryview:
        """The bytes behind a reference: read-only, one dimension, exactly `ref.length` of them.

        The view is valid until the producer's lease ends. Whether the bytes are those that were
        published is checked by the plane afterwards.

        Raises:
            TensorLost: The lease or its producer is gone, or the location is not one of this
                transport's.
        """

    def forget(self, incarnation: Incarnation) -> None:
        """Lets go of what is kept for a producer. Idempotent."""

    def close(self) -> None:
        """Lets go of everything. Idempotent."""
