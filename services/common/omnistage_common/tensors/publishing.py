"""The producer's half of the plane: tensors in the slab, their leases, and who may read them.

A tensor is copied into the slab once, or made there in place. From then on it is found by its lease:
by the plane itself, by those who map the slab, and by those who come to the door with the lease's
token. The digest over all bytes is only worked out once a peer reads over a network.
"""

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from xxhash import xxh3_64, xxh3_64_intdigest

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import TensorLost
from omnistage_common.ids import HostId, Incarnation, LeaseId, TensorToken
from omnistage_common.payloads import (
    INLINE_LIMIT,
    SharedMemoryLocation,
    Tensor,
    TensorHeader,
    TensorRef,
)
from omnistage_common.tensors.checksums import sample_checksum
from omnistage_common.tensors.leases import Lease, LeaseOwner
from omnistage_common.tensors.regions import RegionWatchers
from omnistage_common.tensors.room import Room, RoomStatistics, Wish
from omnistage_common.tensors.segments import STAMP_BYTES, SharedSlab, Stamp

__all__ = ["Publisher", "ReadRefused", "Refusal", "Reservation"]

_PIECE_BYTES: Final = 4 * 1024 * 1024
"""A copy of this size takes about a third of a millisecond; then others have their turn."""
_THREAD_BYTES: Final = 4 * 1024 * 1024
"""A digest over more than this runs in a thread."""


class Refusal(Enum):
    """Why a tensor may not be read."""

    STALE = "stale"
    """It belongs to an earlier life of this process."""
    ENDED = "ended"
    """Its lease has ended."""
    FORBIDDEN = "forbidden"
    """The token is not that of the lease."""


class ReadRefused(TensorLost):
    """A reader asked for what it cannot have."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


class Publisher:
    """See the module.

    Args:
        incarnation: This life of the process.
        host: Identity of the host.
        address: `HOST:PORT` of this process's TensorService; empty when it has none.
        slab_bytes: How much its tensors may take at once.
        directory: Folder of the shared memory segments.
        regions: Hears of the slab when it is made.
    """

    def __init__(
        self,
        *,
        incarnation: Incarnation,
        host: HostId,
        address: str,
        slab_bytes: int,
        directory: Path,
        regions: RegionWatchers,
    ) -> None:
        self._incarnation = incarnation
        self._host = host
        self._address = address
        self._directory = directory
        self._regions = regions
        self._room = Room(capacity=slab_bytes, on_free=self._clear)
        self._slab: SharedSlab | None = None
        self._digests: ThreadPoolExecutor | None = None
        self.digesting = False
        """Whether references carry digests: somebody reads over a network."""

    @property
    def slab(self) -> SharedSlab:
        """The slab; made when it is first asked for.

        Raises:
            SetupError: The folder does not take it.
        """
        if self._slab is None:
            slab = SharedSlab(
                directory=self._directory,
                incarnation=self._incarnation,
                slab_bytes=self._room.capacity,
            )
            self._slab = slab
            self._regions.made(slab)
        return self._slab

    async def publish(
        self, tensor: Tensor, data: memoryview, *, owner: LeaseOwner, deadline: Deadline
    ) -> TensorRef:
        """Copies a tensor, whose bytes are `data`, into the slab; see `TensorPlane.publish`."""
        lease = await self._lease(len(data), owner, deadline)
        with self._room.filling(lease):
            self._room.check_wanted(lease)
            digest = await self._fill(lease, data)
            return self._stamped(lease, tensor.header, digest)

    async def reserve(
        self, header: TensorHeader, *, owner: LeaseOwner, deadline: Deadline
    ) -> "Reservation":
        """Room for a tensor that is made in place; see `TensorPlane.reserve`."""
        lease = await self._lease(header.length, owner, deadline)
        with ExitStack() as failed:
            failed.callback(self._room.abandon, lease)
            self._room.check_wanted(lease)
            data = self.slab.writable(lease.offset, lease.length)
            failed.pop_all()
        return Reservation(self, lease, header, data)

    async def seal(self, lease: Lease, header: TensorHeader) -> Tensor | TensorRef:
        """Publishes what was written into a reserved block."""
        self._room.check_wanted(lease)
        view = self.slab.view(lease.offset, lease.length)
        if lease.length <= INLINE_LIMIT:
            self._room.abandon(lease)
            return Tensor(header=header, data=view.tobytes())
        digest = await self.digest(view) if self.digesting else None
        self._room.check_wanted(lease)
        ref = self._stamped(lease, header, digest)
        self._room.seal(lease)
        return ref

    def abandon(self, lease: Lease) -> None:
        """Gives a reserved block back, unless it was sealed."""
        if self._room.unsealed(lease.id):
            self._room.abandon(lease)

    def own(self, ref: TensorRef) -> memoryview:
        """The bytes behind a reference of this very process.

        Raises:
            TensorLost: Its lease ended, or the reference was altered.
        """
        view = self.opened(ref.incarnation, ref.lease, ref.token)
        if len(view) != ref.length:
            raise TensorLost(
                f"tensor of lease {ref.lease} of {ref.incarnation} is lost: it has {len(view)}"
                f" bytes, the reference says {ref.length}"
            )
        return view

    def opened(self, incarnation: Incarnation, lease: LeaseId, token: TensorToken) -> memoryview:
        """The bytes of a tensor, for whoever shows its token.

        Raises:
            ReadRefused: There is no such tensor, or not for this reader.
        """
        tensor = f"tensor of lease {lease} of {incarnation} is lost"
        if incarnation != self._incarnation:
            raise ReadRefused(
                Refusal.STALE, f"{tensor}: its producer is gone, this is {self._incarnation}"
            )
        held = self._room.held(lease)
        if held is None or self._slab is None:
            raise ReadRefused(Refusal.ENDED, f"{tensor}: its lease ended")
        if held.token != token:
            raise ReadRefused(Refusal.FORBIDDEN, f"{tensor}: the token is not that of its lease")
        return self._slab.view(held.offset, held.length)

    def holds(self, lease: LeaseId) -> bool:
        """Whether a lease is held now."""
        return self._room.held(lease) is not None

    async def digest(self, data: memoryview) -> int:
        """The digest of bytes; a long one is worked out in a thread."""
        if len(data) <= _THREAD_BYTES:
            return xxh3_64_intdigest(data)
        if self._digests is None:
            self._digests = ThreadPoolExecutor(1, thread_name_prefix="tensor-digests")
        return await asyncio.get_running_loop().run_in_executor(
            self._digests, xxh3_64_intdigest, data
        )

    def release(self, leases: Iterable[LeaseId]) -> int:
        """Ends leases; how many of them had not ended before."""
        return self._room.release(leases)

    def release_owner(self, owner: LeaseOwner) -> int:
        """Ends every lease of an owner, and its waits; how many leases there were."""
        return self._room.release_owner(owner)

    def statistics(self) -> RoomStatistics:
        """What is held now."""
        return self._room.statistics()

    def close(self) -> None:
        """Ends every lease and wait, and removes the segment. Idempotent."""
        self._room.close()
        if self._slab is not None:
            self._slab.close()
            self._slab = None
        if self._digests is not None:
            self._digests.shutdown(wait=True)
            self._digests = None

    async def _lease(self, length: int, owner: LeaseOwner, deadline: Deadline) -> Lease:
        return await self._room.lease(
            Wish(owner=owner, length=length, block=STAMP_BYTES + length, deadline=deadline)
        )

    async def _fill(self, lease: Lease, data: memoryview) -> int | None:
        """Copies a tensor into its block, piece by piece; its digest, where one is wanted.

        A piece is summed up right after it was copied, while it is in the processor's cache.
        """
        slab, summed = self.slab, xxh3_64() if self.digesting else None
        for at in range(0, lease.length, _PIECE_BYTES):
            if at:
                await asyncio.sleep(0)
                self._room.check_wanted(lease)
            piece = data[at : at + _PIECE_BYTES]
            slab.write(lease.offset, at, piece)
            if summed is not None:
                summed.update(piece)
        return None if summed is None else summed.intdigest()

    def _stamped(self, lease: Lease, header: TensorHeader, digest: int | None) -> TensorRef:
        slab = self.slab
        checksum = sample_checksum(header, slab.view(lease.offset, lease.length))
        slab.stamp(
            lease.offset,
            Stamp(lease=lease.id, length=lease.length, checksum=checksum, token=lease.token),
        )
        return TensorRef(
            header=header,
            lease=lease.id,
            incarnation=self._incarnation,
            length=lease.length,
            checksum=checksum,
            location=SharedMemoryLocation(
                host=self._host, segment=slab.name, offset=slab.position(lease.offset)
            ),
            token=lease.token,
            address=self._address,
            digest=digest,
        )

    def _clear(self, block: int) -> None:
        if self._slab is not None:
            self._slab.clear(block)


class Reservation:
    """A tensor in the making, within the slab.

    Used with `with`: what was not sealed by its end is given back. Whoever has a device or a thread
    write into `data` waits for that before leaving.
    """

    def __init__(
        self, publisher: Publisher, lease: Lease, header: TensorHeader, data: memoryview
    ) -> None:
        self.data = data
        """Where the tensor's bytes go; writable, one dimension. Not to be touched once sealed."""
        self._publisher = publisher
        self._lease = lease
        self._header = header

    async def seal(self) -> Tensor | TensorRef:
        """Publishes what was written, as `TensorPlane.publish` does, without copying it.

        Raises:
            DeadlineExceeded: The deadline passed.
            RequestCancelled: The owner was released meanwhile.
            Draining: The plane is closed.
        """
        return await self._publisher.seal(self._lease, self._header)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._publisher.abandon(self._lease)
