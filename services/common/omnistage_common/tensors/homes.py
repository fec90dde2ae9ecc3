"""Where published tensors live: the slab on the host, or a region on a device.

A home is memory cut into blocks, each a stamp and then the bytes of a tensor; which block is whose is
a `Room`'s affair. What leases, sums and stamps mean is the same for both homes, so whoever publishes
knows one by this Protocol only.
"""

from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from omnistage_common.errors import TensorLost
from omnistage_common.ids import HostId, Incarnation, LeaseId
from omnistage_common.payloads import (
    DeviceLocation,
    DeviceMemory,
    DeviceTensor,
    SharedMemoryLocation,
    TensorHeader,
)
from omnistage_common.tensors.regions import DeviceOctets, Octets, RegionWatchers
from omnistage_common.tensors.segments import STAMP_BYTES, SharedSlab, Stamp

__all__ = ["DeviceHome", "Home", "SlabHome"]

P_co = TypeVar("P_co", covariant=True)


class Home(Protocol[P_co]):
    """Memory for published tensors; blocks are named by their offsets.

    `P_co` is what a tensor in it is to this process.
    """

    def writable(self, block: int, header: TensorHeader) -> P_co:
        """The tensor of a block, to be made there.

        Raises:
            SetupError: The memory cannot be had.
        """

    def view(self, block: int, header: TensorHeader) -> P_co:
        """The tensor of a block, to be read."""

    def octets(self, block: int, length: int) -> Octets:
        """The bytes of the tensor of a block, to be looked at by the host."""

    def write(self, block: int, at: int, piece: memoryview) -> None:
        """Copies a piece of a tensor into its block.

        Raises:
            SetupError: The memory cannot be had.
        """

    def stamp(self, block: int, stamp: Stamp) -> None:
        """Marks a block as holding the tensor of a lease, once its bytes are written."""

    def clear(self, block: int) -> None:
        """Marks a block as free."""

    def location(self, block: int) -> SharedMemoryLocation | DeviceLocation:
        """Where others find the tensor of a block."""

    def close(self) -> None:
        """Lets go of the memory. Idempotent."""


class SlabHome:
    """The slab; made when it is first needed.

    Args:
        incarnation: This life of the process.
        host: Identity of the host.
        slab_bytes: Bytes for blocks.
        directory: Folder of the shared memory segments.
        regions: Hears of the slab when it is made.
    """

    def __init__(
        self,
        *,
        incarnation: Incarnation,
        host: HostId,
        slab_bytes: int,
        directory: Path,
        regions: RegionWatchers,
    ) -> None:
        self._incarnation = incarnation
        self._host = host
        self._slab_bytes = slab_bytes
        self._directory = directory
        self._regions = regions
        self._made: SharedSlab | None = None

    @property
    def slab(self) -> SharedSlab:
        """The slab.

        Raises:
            SetupError: The folder does not take it.
        """
        if self._made is None:
            slab = SharedSlab(
                directory=self._directory,
                incarnation=self._incarnation,
                slab_bytes=self._slab_bytes,
            )
            self._made = slab
            self._regions.made(slab)
        return self._made

    def writable(self, block: int, header: TensorHeader) -> memoryview:
        """See `Home`."""
        return self.slab.writable(block, header.length)

    def view(self, block: int, header: TensorHeader) -> memoryview:
        """See `Home`."""
        return self.slab.view(block, header.length)

    def octets(self, block: int, length: int) -> memoryview:
        """See `Home`."""
        return self.slab.view(block, length)

    def write(self, block: int, at: int, piece: memoryview) -> None:
        """See `Home`."""
        self.slab.write(block, at, piece)

    def stamp(self, block: int, stamp: Stamp) -> None:
        """See `Home`."""
        self.slab.stamp(block, stamp)

    def clear(self, block: int) -> None:
        """See `Home`."""
        if self._made is not None:
            self._made.clear(block)

    def location(self, block: int) -> SharedMemoryLocation:
        """See `Home`."""
        return SharedMemoryLocation(
            host=self._host, segment=self.slab.name, offset=self.slab.position(block)
        )

    def close(self) -> None:
        """See `Home`."""
        if self._made is not None:
            self._made.close()
            self._made = None


class DeviceHome:
    """A region on a device.

    Args:
        memory: All of it is blocks.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory

    def writable(self, block: int, header: TensorHeader) -> DeviceTensor:
        """See `Home`."""
        return DeviceTensor(header=header, memory=self.memory, offset=block + STAMP_BYTES)

    def view(self, block: int, header: TensorHeader) -> DeviceTensor:
        """See `Home`; a device has no memory that is read-only."""
        return self.writable(block, header)

    def octets(self, block: int, length: int) -> DeviceOctets:
        """See `Home`."""
        return DeviceOctets(self.memory, block + STAMP_BYTES, length)

    def write(self, block: int, at: int, piece: memoryview) -> None:
        """See `Home`."""
        self.memory.write(block + STAMP_BYTES + at, piece)

    def stamp(self, block: int, stamp: Stamp) -> None:
        """See `Home`."""
        self.memory.write(block, stamp.packed())

    def clear(self, block: int) -> None:
        """See `Home`. A device that is gone has no stamp that anybody could read."""
        with suppress(TensorLost):
            self.memory.write(block, Stamp(lease=LeaseId(0)).packed())

    def location(self, block: int) -> DeviceLocation:
        """See `Home`."""
        return DeviceLocation(device=self.memory.device, offset=block + STAMP_BYTES)

    def close(self) -> None:
        """See `Home`; the memory goes with whoever looks at it last."""
