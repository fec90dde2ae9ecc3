"""The tensor plane of a process: publishes the tensors it makes, fetches those of others.

A producer publishes and owns; a consumer fetches and reads in place; whoever opened the request
releases. A small tensor is its own reference. A large one is copied once, into a slab of fixed
size, under a lease that ends with its release, its owner or its deadline. When the slab is full,
publishers wait; nothing grows.

Everything here happens on one event loop: long copies give way to it between pieces, and long
checksums run in a thread. It knows nothing of links, requests or engines: an owner is any hashable
value.
"""

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from xxhash import xxh3_64, xxh3_64_intdigest

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import TensorLost
from omnistage_common.ids import HostId, Incarnation, LeaseId
from omnistage_common.payloads import INLINE_LIMIT, SharedMemoryLocation, Tensor, TensorRef
from omnistage_common.tensors.leases import Lease, LeaseOwner
from omnistage_common.tensors.room import Room, Wish, plane_closed
from omnistage_common.tensors.segments import SHARED_MEMORY_FOLDER, STAMP_BYTES, SharedSlab
from omnistage_common.tensors.shared_memory import SharedMemoryTransport

if TYPE_CHECKING:
    from omnistage_common.tensors.transport import Transport

__all__ = ["PlaneStatistics", "TensorPlane"]

_PIECE_BYTES: Final = 2 * 1024 * 1024
"""A copy of this size takes about a tenth of a millisecond; then others have their turn."""
_THREAD_BYTES: Final = 4 * 1024 * 1024
"""A checksum over more than this runs in a thread."""


class PlaneStatistics(Struct, frozen=True, kw_only=True):
    """What a plane holds, counted from what is there."""

    leases: int
    """Leases that have not ended."""
    used_bytes: int
    """Bytes of the slab in use."""
    slab_bytes: int
    """Bytes of the slab."""
    waiting: int
    """Publishers that wait for room."""
    mapped_segments: int
    """Segments of other processes kept mapped."""


class TensorPlane:
    """Publishes and fetches tensors.

    Args:
        incarnation: This life of the process.
        host: Identity of the host.
        slab_bytes: How much the tensors of this process may take at once. No memory is taken
            before the first tensor over `INLINE_LIMIT`.
        directory: Folder of the shared memory segments.
    """

    def __init__(
        self,
        *,
        incarnation: Incarnation,
        host: HostId,
        slab_bytes: int,
        directory: Path = SHARED_MEMORY_FOLDER,
    ) -> None:
        self._incarnation = incarnation
        self._host = host
        self._directory = directory
        self._room = Room(capacity=slab_bytes, on_free=self._clear)
        self._slab: SharedSlab | None = None
        self._shared_memory = SharedMemoryTransport(host=host, directory=directory)
        self._transports: tuple[Transport, ...] = (self._shared_memory,)
        self._checksums: ThreadPoolExecutor | None = None
        self._closed = False

    def publish_now(self, tensor: Tensor) -> Tensor:
        """The small tensor, owning its bytes; for callers that cannot wait.

        Raises:
            ValueError: It is over `INLINE_LIMIT`, or its bytes are not what its header says.
        """
        length = _length(tensor)
        if length > INLINE_LIMIT:
            raise ValueError(
                f"a tensor of {length} bytes is over the {INLINE_LIMIT} that go inline: publish it"
            )
        return _with_own_bytes(tensor)

    async def publish(
        self, tensor: Tensor, *, owner: LeaseOwner, deadline: Deadline
    ) -> Tensor | TensorRef:
        """What others need to get at a tensor; then the caller's buffer is its own again.

        A small tensor comes back with bytes of its own. A large one is copied into the slab, which
        may take waiting for room, and is kept until `release`, `release_owner` or the deadline.
        When this is cancelled nothing is left.

        Raises:
            ValueError: Its bytes are not what its header says.
            DeadlineExceeded: There was no room before the deadline.
            SetupError: It is larger than the slab, or the shared memory folder is full.
            RequestCancelled: The owner was released meanwhile.
            Draining: The plane is closed.
        """
        length = _length(tensor)
        if length <= INLINE_LIMIT:
            return _with_own_bytes(tensor)
        lease = await self._room.lease(
            Wish(owner=owner, length=length, block=STAMP_BYTES + length, deadline=deadline)
        )
        with self._room.filling(lease):
            self._room.check_wanted(lease)
            slab = self._slab = self._slab or self._new_slab()
            checksum = await self._fill(slab, lease, _flat(tensor.data))
        location = SharedMemoryLocation(
            host=self._host, segment=slab.name, offset=slab.position(lease.offset)
        )
        return TensorRef(
            header=tensor.header,
            lease=lease.id,
            incarnation=self._incarnation,
            length=length,
            checksum=checksum,
            location=location,
        )

    async def fetch(self, ref: Tensor | TensorRef) -> Tensor:
        """The tensor behind a reference, its bytes a read-only view of the producer's memory.

        The view is valid until the lease ends; copy what must live longer.

        Raises:
            TensorLost: Lease or producer are gone, or the bytes are not those that were published.
            Draining: The plane is closed.
        """
        if isinstance(ref, Tensor):
            return ref
        if self._closed:
            raise plane_closed()
        if ref.length != ref.header.length:
            raise _lost(
                ref, f"its header stands for {ref.header.length} bytes, the reference {ref.length}"
            )
        if ref.incarnation == self._incarnation:
            return Tensor(header=ref.header, data=self._own(ref))
        for transport in self._transports:
            if transport.can_reach(ref.location):
                data = await transport.read(ref)
                await self._verify(ref, data)
                return Tensor(header=ref.header, data=data)
        raise _lost(ref, f"it is on host {ref.location.host}, this is {self._host}")

    def release(self, leases: Iterable[LeaseId]) -> int:
        """Ends leases; how many of them had not ended before."""
        return self._room.release(leases)

    def release_owner(self, owner: LeaseOwner) -> int:
        """Ends every lease of an owner, and its waits for room; how many leases there were."""
        return self._room.release_owner(owner)

    def forget(self, incarnation: Incarnation) -> None:
        """Lets go of what is kept mapped of another process; views of it stay valid."""
        for transport in self._transports:
            transport.forget(incarnation)

    def statistics(self) -> PlaneStatistics:
        """What is held now."""
        room = self._room.statistics()
        return PlaneStatistics(
            leases=room.leases,
            used_bytes=room.used_bytes,
            slab_bytes=room.capacity,
            waiting=room.waiting,
            mapped_segments=self._shared_memory.mapped,
        )

    def close(self) -> None:
        """Ends every lease and wait, and removes the segment. Idempotent."""
        self._closed = True
        self._room.close()
        for transport in self._transports:
            transport.close()
        if self._slab is not None:
            self._slab.close()
            self._slab = None
        if self._checksums is not None:
            self._checksums.shutdown(wait=True)
            self._checksums = None

    def _new_slab(self) -> SharedSlab:
        return SharedSlab(
            directory=self._directory,
            incarnation=self._incarnation,
            slab_bytes=self._room.capacity,
        )

    def _clear(self, block: int) -> None:
        if self._slab is not None:
            self._slab.clear(block)

    async def _fill(self, slab: SharedSlab, lease: Lease, data: memoryview) -> int:
        """Copies a tensor into its block, piece by piece; its checksum."""
        checksum = xxh3_64()
        for at in range(0, lease.length, _PIECE_BYTES):
            if at:
                await asyncio.sleep(0)
                self._room.check_wanted(lease)
            piece = data[at : at + _PIECE_BYTES]
            slab.write(lease.offset, at, piece)
            checksum.update(piece)
        digest = checksum.intdigest()
        slab.stamp(lease.offset, lease=lease.id, length=lease.length, checksum=digest)
        return digest

    def _own(self, ref: TensorRef) -> memoryview:
        lease = self._room.held(ref.lease)
        if lease is None or self._slab is None:
            raise _lost(ref, "its lease ended")
        if lease.length != ref.length:
            raise _lost(ref, f"it has {lease.length} bytes, the reference says {ref.length}")
        return self._slab.view(lease.offset, lease.length)

    async def _verify(self, ref: TensorRef, data: memoryview) -> None:
        if ref.length <= _THREAD_BYTES:
            found = xxh3_64_intdigest(data)
        else:
            if self._checksums is None:
                self._checksums = ThreadPoolExecutor(1, thread_name_prefix="tensor-checksums")
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._checksums, xxh3_64_intdigest, data)
        if found != ref.checksum:
            raise _lost(
                ref,
                f"its bytes changed: their checksum is {found:016x}, the reference says"
                f" {ref.checksum:016x}",
            )


def _length(tensor: Tensor) -> int:
    data = tensor.data
    length = len(data) if isinstance(data, bytes) else data.nbytes
    if length != tensor.header.length:
        raise ValueError(
            f"a tensor of shape {tensor.header.shape} and {tensor.header.element_type.value} has"
            f" {tensor.header.length} bytes, {length} were given"
        )
    return length


def _with_own_bytes(tensor: Tensor) -> Tensor:
    if isinstance(tensor.data, bytes):
        return tensor
    return Tensor(header=tensor.header, data=tensor.data.tobytes())


def _flat(data: bytes | memoryview) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())


def _lost(ref: TensorRef, why: str) -> TensorLost:
    return TensorLost(f"tensor of lease {ref.lease} of {ref.incarnation} is lost: {why}")
