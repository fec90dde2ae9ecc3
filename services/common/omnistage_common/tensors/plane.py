"""The tensor plane of a process: publishes the tensors it makes, fetches those of others.

A producer publishes and owns; a consumer fetches and reads in place; whoever opened the request
releases. A small tensor is its own reference. A large one is copied once, into a slab of fixed
size, under a lease that ends with its release, its owner or its deadline. When the slab is full,
publishers wait in the order they came: that is the back-pressure, and nothing grows.

Everything here happens on one event loop. Long copies give way to it between pieces and long
checksums run in a thread. Waits are futures and there is one timer, for the next deadline.
It knows nothing of links, requests or engines: an owner is any hashable value.
"""

import asyncio
import math
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from xxhash import xxh3_64, xxh3_64_intdigest

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import (
    DeadlineExceeded,
    Draining,
    RequestCancelled,
    SetupError,
    TensorLost,
)
from omnistage_common.ids import HostId, Incarnation, LeaseId
from omnistage_common.payloads import INLINE_LIMIT, SharedMemoryLocation, Tensor, TensorRef
from omnistage_common.tensors.allocation import Allocator
from omnistage_common.tensors.leases import Lease, LeaseOwner, LeaseState, LeaseTable
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


class _Wish(Struct, frozen=True, kw_only=True):
    """A lease that a publisher wants."""

    owner: LeaseOwner
    length: int
    deadline: Deadline

    @property
    def size(self) -> int:
        """Bytes of the block."""
        return STAMP_BYTES + self.length


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
        self._allocator = Allocator(slab_bytes)
        self._leases = LeaseTable()
        self._slab: SharedSlab | None = None
        self._waiters: dict[asyncio.Future[Lease], _Wish] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_deadline = math.inf
        self._closed = False
        self._shared_memory = SharedMemoryTransport(host=host, directory=directory)
        self._transports: tuple[Transport, ...] = (self._shared_memory,)
        self._checksums: ThreadPoolExecutor | None = None

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
        """What others need to get at a tensor; the caller's buffer is its own again.

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
        lease = await self._lease(_Wish(owner=owner, length=length, deadline=deadline))
        with self._filling(lease):
            self._check_wanted(lease)
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
            raise _closed()
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
        return self._reclaim(self._leases.release(leases))

    def release_owner(self, owner: LeaseOwner) -> int:
        """Ends every lease of an owner, and its waits; how many leases there were."""
        for waiter, wish in self._waiters.items():
            if wish.owner == owner and not waiter.done():
                waiter.set_exception(_unwanted())
        return self._reclaim(self._leases.release_owner(owner))

    def forget(self, incarnation: Incarnation) -> None:
        """Lets go of what is kept mapped of another process; views of it stay valid."""
        for transport in self._transports:
            transport.forget(incarnation)

    def statistics(self) -> PlaneStatistics:
        """What is held now."""
        leases = self._leases.statistics()
        return PlaneStatistics(
            leases=leases.filling + leases.held,
            used_bytes=self._allocator.statistics().used,
            slab_bytes=self._allocator.capacity,
            waiting=len(self._waiters),
            mapped_segments=self._shared_memory.mapped,
        )

    def close(self) -> None:
        """Ends every lease and wait, and removes the segment. Idempotent."""
        self._closed = True
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(_closed())
        self._reclaim(self._leases.release_all())
        for transport in self._transports:
            transport.close()
        if self._slab is not None:
            self._slab.close()
            self._slab = None
        if self._checksums is not None:
            self._checksums.shutdown(wait=True, cancel_futures=True)
            self._checksums = None

    async def _lease(self, wish: _Wish) -> Lease:
        if self._closed:
            raise _closed()
        if not self._allocator.fits(wish.size):
            raise SetupError(
                f"a tensor of {wish.length} bytes does not fit into the tensor slab of"
                f" {self._allocator.capacity}: raise `limits.slabBytes` of the stage"
            )
        if wish.deadline.passed:
            raise self._late(wish.length)
        lease = None if self._waiters else self._granted(wish)
        return lease or await self._wait(wish)

    async def _wait(self, wish: _Wish) -> Lease:
        waiter: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = wish
        try:
            async with asyncio.timeout(wish.deadline.remaining()):
                return await waiter
        except TimeoutError:
            self._withdraw(waiter)
            raise self._late(wish.length) from None
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise

    def _withdraw(self, waiter: asyncio.Future[Lease]) -> None:
        """Takes back a wait, and the lease it may have been given in the same turn."""
        self._waiters.pop(waiter, None)
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self._abandon(waiter.result())
        self._admit()

    def _granted(self, wish: _Wish) -> Lease | None:
        block = self._allocator.allocate(wish.size)
        if block is None:
            return None
        lease = self._leases.grant(
            owner=wish.owner,
            offset=block,
            length=wish.length,
            deadline=wish.deadline.monotonic,
        )
        self._arm(lease.deadline)
        return lease

    def _admit(self) -> None:
        """Gives leases to those who wait, in their order, as far as the room goes."""
        while self._waiters:
            waiter, wish = next(iter(self._waiters.items()))
            if not waiter.done():
                lease = self._granted(wish)
                if lease is None:
                    return
                waiter.set_result(lease)
            del self._waiters[waiter]

    def _new_slab(self) -> SharedSlab:
        return SharedSlab(
            directory=self._directory,
            incarnation=self._incarnation,
            slab_bytes=self._allocator.capacity,
        )

    @contextmanager
    def _filling(self, lease: Lease) -> Iterator[None]:
        """Seals a lease when it is filled, and ends it when that fails or is cancelled."""
        try:
            yield
        except BaseException:
            self._abandon(lease)
            raise
        self._leases.seal(lease.id)

    def _abandon(self, lease: Lease) -> None:
        self._leases.release([lease.id])
        self._reclaim([self._leases.seal(lease.id)])

    async def _fill(self, slab: SharedSlab, lease: Lease, data: memoryview) -> int:
        """Copies a tensor into its block, piece by piece; its checksum."""
        checksum = xxh3_64()
        for at in range(0, lease.length, _PIECE_BYTES):
            if at:
                await asyncio.sleep(0)
                self._check_wanted(lease)
            piece = data[at : at + _PIECE_BYTES]
            checksum.update(piece)
            slab.write(lease.offset, at, piece)
        digest = checksum.intdigest()
        slab.stamp(lease.offset, lease=lease.id, length=lease.length, checksum=digest)
        return digest

    def _check_wanted(self, lease: Lease) -> None:
        now = self._leases.get(lease.id)
        if now is not None and now.state is LeaseState.FILLING:
            return
        if self._closed:
            raise _closed()
        if lease.deadline <= time.monotonic():
            raise self._late(lease.length)
        raise _unwanted()

    def _own(self, ref: TensorRef) -> memoryview:
        lease = self._leases.get(ref.lease)
        if lease is None or lease.state is not LeaseState.HELD or self._slab is None:
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

    def _reclaim(self, leases: list[Lease]) -> int:
        """Gives back the memory of those leases that have ended; how many leases were named."""
        for lease in leases:
            if lease.state is LeaseState.ENDED:
                if self._slab is not None:
                    self._slab.clear(lease.offset)
                self._allocator.free(lease.offset)
        self._admit()
        if self._timer is not None and self._leases.next_deadline is None:
            self._disarm()
        return len(leases)

    def _arm(self, deadline: float) -> None:
        """Makes sure that the timer fires no later than this."""
        if deadline >= self._timer_deadline:
            return
        self._disarm()
        self._timer_deadline = deadline
        delay = max(0.0, deadline - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_deadline = None, math.inf

    def _on_timer(self) -> None:
        self._disarm()
        self._reclaim(self._leases.expire(time.monotonic()))
        following = self._leases.next_deadline
        if following is not None:
            self._arm(following)

    def _late(self, length: int) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"no room for a tensor of {length} bytes in the tensor slab of"
            f" {self._allocator.capacity} before the request's deadline: its consumers still hold"
            f" {self._allocator.statistics().used}; raise `limits.slabBytes` of the stage"
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


def _closed() -> Draining:
    return Draining("the tensor plane of this process is closed")


def _unwanted() -> RequestCancelled:
    return RequestCancelled("the owner of the tensor was released while it was published")


def _lost(ref: TensorRef, why: str) -> TensorLost:
    return TensorLost(f"tensor of lease {ref.lease} of {ref.incarnation} is lost: {why}")
