"""Room for tensors that come over a network: bounded, leased to the request that fetches them.

Not the slab: a process whose slab is full of what it received could not publish what it makes of it,
and would wait for itself. It is as large as the slab, private, and made when the first such tensor
comes; a block is laid out as in the slab, stamp first, so that a read brings the stamp along.
"""

from omnistage_common.deadlines import Deadline
from omnistage_common.payloads import TensorRef
from omnistage_common.tensors.leases import Lease, LeaseOwner
from omnistage_common.tensors.regions import PrivateMemory, RegionWatchers
from omnistage_common.tensors.room import Room, Wish
from omnistage_common.tensors.segments import STAMP_BYTES

__all__ = ["ReceiveRoom"]


class ReceiveRoom:
    """See the module.

    Args:
        capacity: Bytes.
        regions: Hears of the memory when it is made.
    """

    def __init__(self, *, capacity: int, regions: RegionWatchers) -> None:
        self.room = Room(capacity=capacity, on_free=lambda _: None)
        self._regions = regions
        self._memory: PrivateMemory | None = None

    async def lease(self, ref: TensorRef, *, owner: LeaseOwner, deadline: Deadline) -> Lease:
        """Room for a tensor and its stamp, to be used with `Room.filling`.

        Raises:
            OmnistageError: As `Room.lease`.
        """
        return await self.room.lease(
            Wish(
                owner=owner,
                length=ref.length,
                block=STAMP_BYTES + ref.length,
                deadline=deadline,
            )
        )

    def block(self, lease: Lease) -> memoryview:
        """The memory of a lease, stamp and bytes, writable."""
        return self._made().view[lease.offset : lease.offset + STAMP_BYTES + lease.length]

    def address(self, lease: Lease) -> int:
        """Where that is."""
        return self._made().address + lease.offset

    def close(self) -> None:
        """Ends every lease and wait; memory that somebody still looks at stays. Idempotent."""
        self.room.close()
        self._memory = None

    def _made(self) -> PrivateMemory:
        if self._memory is None:
            memory = PrivateMemory(self.room.capacity)
            self._memory = memory
            self._regions.made(memory)
        return self._memory
