"""Room for tensors that come over a network: bounded, leased to the request that fetches them.

Not the slab: a process whose slab is full of what it received could not publish what it makes of it,
and would wait for itself. It is as large as the slab, private, and made when the first such tensor
comes; a block is laid out as in the slab, stamp first, so that a read brings the stamp along. The
same again, on the device, is where an engine may have what it computes with on its device.
"""

from abc import ABC, abstractmethod
from typing import Final

from omnistage_common.deadlines import Deadline
from omnistage_common.payloads import DeviceMemory, DeviceTensor, Tensor, TensorHeader, TensorRef
from omnistage_common.tensors.leases import Lease, LeaseOwner
from omnistage_common.tensors.regions import DeviceOctets, Octets, PrivateMemory, RegionWatchers
from omnistage_common.tensors.room import Room, Wish
from omnistage_common.tensors.segments import STAMP_BYTES

__all__ = ["DEVICE_SETTING", "DeviceReceiveRoom", "HostReceiveRoom", "ReceiveRoom"]

DEVICE_SETTING: Final = "limits.deviceSlabBytes"
"""What says how much memory of the device there is for tensors."""


class ReceiveRoom(ABC):
    """Leases of memory, on the host or on a device.

    Args:
        room: Which of its bytes are whose.
    """

    def __init__(self, room: Room) -> None:
        self.room = room

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

    @property
    @abstractmethod
    def memory(self) -> DeviceMemory | None:
        """The device memory that it is; None on the host."""

    @abstractmethod
    def address(self, lease: Lease) -> int:
        """Where the memory of a lease is; the stamp comes first."""

    def block(self, lease: Lease) -> Octets:
        """The memory of a lease, stamp and bytes, to be looked at by the host."""
        return self._part(lease.offset, STAMP_BYTES + lease.length)

    def stamp(self, lease: Lease) -> Octets:
        """The stamp in there."""
        return self._part(lease.offset, STAMP_BYTES)

    def octets(self, lease: Lease) -> Octets:
        """The bytes in there."""
        return self._part(lease.offset + STAMP_BYTES, lease.length)

    @abstractmethod
    def write(self, lease: Lease, at: int, piece: bytes | memoryview) -> None:
        """Puts a piece of a tensor into its place."""

    @abstractmethod
    def tensor(self, lease: Lease, header: TensorHeader) -> Tensor | DeviceTensor:
        """What the reader gets."""

    def close(self) -> None:
        """Ends every lease and wait; memory that somebody still looks at stays. Idempotent."""
        self.room.close()

    @abstractmethod
    def _part(self, offset: int, length: int) -> Octets: ...


class HostReceiveRoom(ReceiveRoom):
    """Room in private memory.

    Args:
        capacity: Bytes.
        regions: Hears of the memory when it is made.
    """

    def __init__(self, *, capacity: int, regions: RegionWatchers) -> None:
        super().__init__(Room(capacity=capacity, on_free=lambda _: None))
        self._regions = regions
        self._memory: PrivateMemory | None = None

    @property
    def memory(self) -> None:
        """See `ReceiveRoom`."""

    def address(self, lease: Lease) -> int:
        """See `ReceiveRoom`."""
        return self._made().address + lease.offset

    def write(self, lease: Lease, at: int, piece: bytes | memoryview) -> None:
        """See `ReceiveRoom`."""
        start = lease.offset + STAMP_BYTES + at
        self._made().view[start : start + len(piece)] = piece

    def tensor(self, lease: Lease, header: TensorHeader) -> Tensor:
        """See `ReceiveRoom`."""
        octets = self._part(lease.offset + STAMP_BYTES, lease.length)
        return Tensor(header=header, data=octets.toreadonly())

    def close(self) -> None:
        """See `ReceiveRoom`."""
        super().close()
        self._memory = None

    def _part(self, offset: int, length: int) -> memoryview:
        return self._made().view[offset : offset + length]

    def _made(self) -> PrivateMemory:
        if self._memory is None:
            memory = PrivateMemory(self.room.capacity)
            self._memory = memory
            self._regions.made(memory)
        return self._memory


class DeviceReceiveRoom(ReceiveRoom):
    """Room on a device.

    Args:
        memory: All of it is blocks.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        super().__init__(Room(capacity=memory.size, on_free=lambda _: None, setting=DEVICE_SETTING))
        self._memory = memory

    @property
    def memory(self) -> DeviceMemory:
        """See `ReceiveRoom`."""
        return self._memory

    def address(self, lease: Lease) -> int:
        """See `ReceiveRoom`."""
        return self._memory.address + lease.offset

    def write(self, lease: Lease, at: int, piece: bytes | memoryview) -> None:
        """See `ReceiveRoom`."""
        self._memory.write(lease.offset + STAMP_BYTES + at, piece)

    def tensor(self, lease: Lease, header: TensorHeader) -> DeviceTensor:
        """See `ReceiveRoom`."""
        return DeviceTensor(header=header, memory=self._memory, offset=lease.offset + STAMP_BYTES)

    def _part(self, offset: int, length: int) -> DeviceOctets:
        return DeviceOctets(self._memory, offset, length)
