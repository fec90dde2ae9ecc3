"""The producer's half of the plane: tensors in their home, their leases, and who may read them.

A tensor is copied into its home once, or made there in place. From then on it is found by its lease:
by the plane itself, by those who map the slab, by those whose transfer engine reads it, and by those
who come to the door with the lease's token. The digest over all bytes is only worked out once a peer
reads over a network, and never for a device, whose bytes would have to come to the host for it.
"""

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from enum import Enum
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from msgspec.structs import replace
from xxhash import xxh3_64

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import TensorLost
from omnistage_common.ids import Incarnation, LeaseId, TensorToken
from omnistage_common.payloads import (
    INLINE_LIMIT,
    Tensor,
    TensorHeader,
    TensorRef,
)
from omnistage_common.tensors.checksums import sample_checksum, whole_digest
from omnistage_common.tensors.homes import Home
from omnistage_common.tensors.leases import Lease, LeaseOwner
from omnistage_common.tensors.regions import Octets
from omnistage_common.tensors.room import Room, RoomStatistics, Wish
from omnistage_common.tensors.segments import STAMP_BYTES, Stamp

__all__ = ["Publisher", "ReadRefused", "Refusal", "Reservation"]

P_co = TypeVar("P_co", covariant=True)

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


class Publisher(Generic[P_co]):
    """See the module.

    Args:
        incarnation: This life of the process.
        address: `HOST:PORT` of this process's TensorService; empty when it has none.
        home: Where the tensors live.
        room: Which of its bytes are whose; made with `on_free` of the home.
    """

    def __init__(
        self, *, incarnation: Incarnation, address: str, home: Home[P_co], room: Room
    ) -> None:
        self._incarnation = incarnation
        self._address = address
        self._home = home
        self._room = room
        self._digests: ThreadPoolExecutor | None = None
        self.digesting = False
        """Whether references carry digests: somebody reads over a network."""

    async def publish(
        self, tensor: Tensor, data: memoryview, *, owner: LeaseOwner, deadline: Deadline
    ) -> TensorRef:
        """Copies a tensor, whose bytes are `data`, into its home; see `TensorPlane.publish`."""
        lease = await self._lease(len(data), owner, deadline)
        with self._room.filling(lease):
            self._room.check_wanted(lease)
            digest = await self._fill(lease, data)
            return self._stamped(lease, tensor.header, digest)

    async def reserve(
        self, header: TensorHeader, *, owner: LeaseOwner, deadline: Deadline
    ) -> "Reservation[P_co]":
        """Room for a tensor that is made in place; see `TensorPlane.reserve`."""
        lease = await self._lease(header.length, owner, deadline)
        with ExitStack() as failed:
            failed.callback(self._room.abandon, lease)
            self._room.check_wanted(lease)
            data = self._home.writable(lease.offset, header)
            failed.pop_all()
        return Reservation(self, lease, header, data)

    async def seal(self, reserved: Lease, header: TensorHeader) -> Tensor | TensorRef:
        """Publishes what was written into a reserved block."""
        if header.length > reserved.length:
            raise ValueError(
                f"a tensor of {header.length} bytes was made where {reserved.length} were reserved"
            )
        lease = replace(reserved, length=header.length)
        self._room.check_wanted(lease)
        octets = self._home.octets(lease.offset, lease.length)
        if lease.length <= INLINE_LIMIT:
            content = Tensor(header=header, data=octets[:].tobytes())
            self._room.abandon(lease)
            return content
        digest = await self.digest(octets) if self.digesting else None
        self._room.check_wanted(lease)
        ref = self._stamped(lease, header, digest)
        self._room.seal(lease)
        return ref

    def abandon(self, lease: Lease) -> None:
        """Gives a reserved block back, unless it was sealed."""
        if self._room.unsealed(lease.id):
            self._room.abandon(lease)

    def own(self, ref: TensorRef) -> P_co:
        """The tensor behind a reference of this very process.

        Raises:
            TensorLost: Its lease ended, or the reference was altered.
        """
        held = self._opened(ref.incarnation, ref.lease, ref.token)
        if held.length != ref.length:
            raise TensorLost(
                f"tensor of lease {ref.lease} of {ref.incarnation} is lost: it has {held.length}"
                f" bytes, the reference says {ref.length}"
            )
        return self._home.view(held.offset, ref.header)

    def opened(self, incarnation: Incarnation, lease: LeaseId, token: TensorToken) -> Octets:
        """The bytes of a tensor, for whoever shows its token.

        Raises:
            ReadRefused: There is no such tensor, or not for this reader.
        """
        held = self._opened(incarnation, lease, token)
        return self._home.octets(held.offset, held.length)

    def holds(self, lease: LeaseId) -> bool:
        """Whether a lease is held now."""
        return self._room.held(lease) is not None

    async def digest(self, data: Octets) -> int:
        """The digest of bytes; a long one is worked out in a thread."""
        if len(data) <= _THREAD_BYTES:
            return whole_digest(data)
        if self._digests is None:
            self._digests = ThreadPoolExecutor(1, thread_name_prefix="tensor-digests")
        return await asyncio.get_running_loop().run_in_executor(self._digests, whole_digest, data)

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
        """Ends every lease and wait, and closes the home. Idempotent."""
        self._room.close()
        self._home.close()
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
        summed = xxh3_64() if self.digesting else None
        for at in range(0, lease.length, _PIECE_BYTES):
            if at:
                await asyncio.sleep(0)
                self._room.check_wanted(lease)
            piece = data[at : at + _PIECE_BYTES]
            self._home.write(lease.offset, at, piece)
            if summed is not None:
                summed.update(piece)
        return None if summed is None else summed.intdigest()

    def _stamped(self, lease: Lease, header: TensorHeader, digest: int | None) -> TensorRef:
        octets = self._home.octets(lease.offset, lease.length)
        checksum = sample_checksum(header, octets)
        self._home.stamp(
            lease.offset,
            Stamp(lease=lease.id, length=lease.length, checksum=checksum, token=lease.token),
        )
        return TensorRef(
            header=header,
            lease=lease.id,
            incarnation=self._incarnation,
            length=lease.length,
            checksum=checksum,
            location=self._home.location(lease.offset),
            token=lease.token,
            address=self._address,
            digest=digest,
        )

    def _opened(self, incarnation: Incarnation, lease: LeaseId, token: TensorToken) -> Lease:
        tensor = f"tensor of lease {lease} of {incarnation} is lost"
        if incarnation != self._incarnation:
            raise ReadRefused(
                Refusal.STALE, f"{tensor}: its producer is gone, this is {self._incarnation}"
            )
        held = self._room.held(lease)
        if held is None:
            raise ReadRefused(Refusal.ENDED, f"{tensor}: its lease ended")
        if held.token != token:
            raise ReadRefused(Refusal.FORBIDDEN, f"{tensor}: the token is not that of its lease")
        return held


class Reservation(Generic[P_co]):
    """A tensor in the making, where consumers will read it.

    Used with `with`: what was not sealed by its end is given back. Whoever has a device or a thread
    write into `data` waits for that before leaving.
    """

    def __init__(
        self, publisher: Publisher[P_co], lease: Lease, header: TensorHeader, data: P_co
    ) -> None:
        self.data = data
        """Where the tensor's bytes go: in the slab a view of one dimension. Not to be touched once
        sealed."""
        self._publisher = publisher
        self._lease = lease
        self._header = header

    async def seal(self, header: TensorHeader | None = None) -> Tensor | TensorRef:
        """Publishes what was written, as `TensorPlane.publish` does, without copying it.

        Args:
            header: Of what was made, where that is less than was reserved; it stands at the front.

        Raises:
            ValueError: It is more.
            DeadlineExceeded: The deadline passed.
            RequestCancelled: The owner was released meanwhile.
            Draining: The plane is closed.
        """
        return await self._publisher.seal(self._lease, header or self._header)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._publisher.abandon(self._lease)
