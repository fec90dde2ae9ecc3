"""The tensor plane of a process: publishes the tensors it makes, fetches those of others.

A producer publishes and owns; a consumer fetches; whoever opened the request releases. A small tensor
is its own reference. A large one is put once into a slab of fixed size, under a lease that ends with
its release, its owner or its deadline. Where the consumer can map the slab it reads in place;
elsewhere the bytes come into room of the consumer, bounded likewise. What is full makes others wait;
nothing grows. Beside slab and room there may be the same on a device of the process, whose tensors the
host never sees as a whole.

Everything here happens on one event loop: long copies give way to it between pieces, long sums run in
a thread, and so does the transfer engine. It knows nothing of links, requests or engines: an owner is
any hashable value.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from itertools import count
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from xxhash import xxh3_64

from omnistage_common.addresses import parse_address
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import SetupError
from omnistage_common.ids import HostId, Incarnation, LeaseId, TensorToken
from omnistage_common.payloads import (
    INLINE_LIMIT,
    DeviceMemory,
    DeviceTensor,
    Tensor,
    TensorHeader,
    TensorRef,
)
from omnistage_common.tensors.calls import NoTransport
from omnistage_common.tensors.checking import check_length
from omnistage_common.tensors.fetching import Fetcher
from omnistage_common.tensors.homes import DeviceHome, SlabHome
from omnistage_common.tensors.leases import LeaseOwner
from omnistage_common.tensors.publishing import Publisher, ReadRefused, Refusal, Reservation
from omnistage_common.tensors.receiving import (
    DEVICE_SETTING,
    DeviceReceiveRoom,
    HostReceiveRoom,
    ReceiveRoom,
)
from omnistage_common.tensors.regions import PageLock, RegionWatchers
from omnistage_common.tensors.room import Room, RoomStatistics, plane_closed
from omnistage_common.tensors.segments import SHARED_MEMORY_FOLDER
from omnistage_common.tensors.sessions import TransferEngines
from omnistage_common.tensors.transport import (
    EVERY_TRANSPORT,
    MOONCAKE,
    Agreement,
    PeerReport,
    TransferSession,
    TransportCount,
    TransportKind,
)

__all__ = ["PlaneStatistics", "TensorPlane"]

_LEAST_SENT_BYTES: Final = 128 * 1024
_MOST_SENT_BYTES: Final = 512 * 1024
_SENT_PIECES: Final = 64
"""Into as many pieces a byte stream is cut, within these bounds: the pieces of a short one overlap on
their way, and those of a long one are not too many."""
_LOOPBACK: Final = "127.0.0.1"


class PlaneStatistics(Struct, frozen=True, kw_only=True):
    """What a plane holds, counted from what is there."""

    leases: int
    """Leases that have not ended, of tensors made here and of tensors received."""
    used_bytes: int
    """Bytes in use, of the slab and of the room for what is received."""
    slab_bytes: int
    """Bytes of the slab."""
    waiting: int
    """Those that wait for room."""
    mapped_segments: int
    """Segments of other processes kept mapped."""
    received: int
    """Leases of tensors received."""
    received_bytes: int
    """Bytes of them in use."""
    settling: int
    """Blocks of ended leases that a transfer or a copy still writes to."""
    device_leases: int
    """Those of `leases` that are on the device."""
    device_used_bytes: int
    """Bytes in use on the device, for tensors made here and received."""
    device_bytes: int
    """Bytes there for tensors made here."""


class TensorPlane:
    """Publishes and fetches tensors.

    Args:
        incarnation: This life of the process.
        host: Identity of the host.
        slab_bytes: How much the tensors of this process may take at once, and how much those may
            that it receives over a network. No memory is taken before the first tensor over
            `INLINE_LIMIT`.
        directory: Folder of the shared memory segments.
        address: `HOST:PORT` of this process's TensorService as other hosts reach it; empty when it
            has none, and then only processes of this host can read what it publishes.
        transports: Ways by which tensors of other processes may be read, the best first.
    """

    def __init__(
        self,
        *,
        incarnation: Incarnation,
        host: HostId,
        slab_bytes: int,
        directory: Path = SHARED_MEMORY_FOLDER,
        address: str = "",
        transports: tuple[TransportKind, ...] = EVERY_TRANSPORT,
    ) -> None:
        self.incarnation = incarnation
        self._host = host
        self._address = address
        self._regions = RegionWatchers()
        self._lease_ids = count(1)
        self._slab = SlabHome(
            incarnation=incarnation,
            host=host,
            slab_bytes=slab_bytes,
            directory=directory,
            regions=self._regions,
        )
        self._publisher = Publisher(
            incarnation=incarnation,
            address=address,
            home=self._slab,
            room=Room(capacity=slab_bytes, on_free=self._slab.clear, ids=self._lease_ids),
        )
        self._device: DeviceHome | None = None
        self._device_publisher: Publisher[DeviceTensor] | None = None
        self._received = HostReceiveRoom(capacity=slab_bytes, regions=self._regions)
        self._engines = TransferEngines(
            host=parse_address(address).host if address else _LOOPBACK, regions=self._regions
        )
        self._fetcher = Fetcher(
            host=host,
            kinds=transports,
            directory=directory,
            received=self._received,
            engines=self._engines,
        )
        self._closed = False

    def attach(self, *, made: DeviceMemory, received: DeviceMemory | None) -> None:
        """Gives the plane memory of a device, once and before it is used.

        Args:
            made: For tensors that are made on the device.
            received: For tensors of other processes that are wanted on it.
        """
        home = DeviceHome(made)
        self._device = home
        self._device_publisher = Publisher(
            incarnation=self.incarnation,
            address=self._address,
            home=home,
            room=Room(
                capacity=made.size,
                on_free=home.clear,
                setting=DEVICE_SETTING,
                ids=self._lease_ids,
            ),
        )
        if received is not None:
            self._fetcher.on_device = DeviceReceiveRoom(received)

    @property
    def has_device(self) -> bool:
        """Whether tensors can be made on a device."""
        return self._device is not None

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
        if _length(tensor) <= INLINE_LIMIT:
            return _with_own_bytes(tensor)
        return await self._publisher.publish(
            tensor, _flat(tensor.data), owner=owner, deadline=deadline
        )

    async def reserve(
        self, header: TensorHeader, *, owner: LeaseOwner, deadline: Deadline
    ) -> Reservation[memoryview]:
        """Room in the slab for a tensor that is made there in place, e.g. copied from a device.

            with await plane.reserve(header, owner=request, deadline=deadline) as place:
                fill(place.data)
                ref = await place.seal()

        Raises:
            DeadlineExceeded: There was no room before the deadline.
            SetupError: It is larger than the slab, or the shared memory folder is full.
            RequestCancelled: The owner was released meanwhile.
            Draining: The plane is closed.
        """
        return await self._publisher.reserve(header, owner=owner, deadline=deadline)

    async def reserve_on_device(
        self, header: TensorHeader, *, owner: LeaseOwner, deadline: Deadline
    ) -> Reservation[DeviceTensor]:
        """Room on the device for a tensor that is made there, as `reserve` gives room in the slab.

        Whatever writes to it on the device has ended before it is sealed.

        Raises:
            DeadlineExceeded: There was no room before the deadline.
            SetupError: It is larger than the room for such tensors, or there is no device.
            RequestCancelled: The owner was released meanwhile.
            Draining: The plane is closed.
        """
        if self._device_publisher is None:
            raise SetupError(
                f"there is no device memory for tensors: set `{DEVICE_SETTING}` of the stage",
                field=DEVICE_SETTING,
            )
        return await self._device_publisher.reserve(header, owner=owner, deadline=deadline)

    async def fetch(
        self, ref: Tensor | TensorRef, *, owner: LeaseOwner, deadline: Deadline
    ) -> Tensor:
        """The tensor behind a reference, its bytes a read-only view.

        Of a process of this host the view is of the producer's memory, and valid until the
        producer's lease ends. What comes over a network is kept in room of this process under a lease of
        `owner`, and the view is valid until that ends: with `release_owner(owner)` or at the
        deadline. Copy what must live longer.

        Raises:
            TensorLost: Lease or producer are gone, or the bytes are not those that were published.
            DeadlineExceeded: There was no room before the deadline, or the bytes came too late.
            SetupError: It came over a network and is larger than the room for that.
            RequestCancelled: The owner was released meanwhile.
            Draining: The plane is closed.
        """
        tensor = await self._fetched(ref, owner, deadline, to_device=False)
        if isinstance(tensor, DeviceTensor):
            raise TypeError("a tensor landed on the device unasked")
        return tensor

    async def fetch_to_device(
        self, ref: Tensor | TensorRef, *, owner: LeaseOwner, deadline: Deadline
    ) -> Tensor | DeviceTensor:
        """As `fetch`, for a reader who computes on the device of this process.

        The tensor is on the device where it was made there by this process, or comes over a network
        by a way that leads there; else it is on the host as ever. It is valid as long.

        Raises:
            OmnistageError: As `fetch`.
        """
        return await self._fetched(ref, owner, deadline, to_device=True)

    def release(self, leases: Iterable[LeaseId]) -> int:
        """Ends leases of tensors made here; how many of them had not ended before."""
        ended = tuple(leases)
        return sum(publisher.release(ended) for publisher in self._publishers)

    def release_owner(self, owner: LeaseOwner) -> int:
        """Ends every lease of an owner, and its waits for room; how many leases there were."""
        received = sum(landing.room.release_owner(owner) for landing in self._landings)
        return received + sum(each.release_owner(owner) for each in self._publishers)

    def forget(self, incarnation: Incarnation) -> None:
        """Lets go of what is kept of another process; views of its memory stay valid."""
        self._fetcher.forget(incarnation)

    def page_lock(self, lock: PageLock) -> None:
        """Has the memory of the plane locked in place, now or when it is made.

        For stages whose device copies to and from locked pages only, or faster. All of the slab is
        then taken from the system at once.

        Args:
            lock: Called with address and bytes of each region, e.g. to register it with a device;
                what it returns undoes that, and is called before the memory goes.

        Raises:
            SetupError: The shared memory folder is full.
        """
        self._regions.watch(lock, whole=True)

    def statistics(self) -> PlaneStatistics:
        """What is held now."""
        made, received = self._publisher.statistics(), self._received.room.statistics()
        on_device = self._on_device()
        everywhere = (made, received, *on_device)
        return PlaneStatistics(
            leases=sum(each.leases for each in everywhere),
            used_bytes=made.used_bytes + received.used_bytes,
            slab_bytes=made.capacity,
            waiting=sum(each.waiting for each in everywhere),
            mapped_segments=self._fetcher.mapped,
            received=received.leases,
            received_bytes=received.used_bytes,
            settling=sum(each.settling for each in everywhere),
            device_leases=sum(each.leases for each in on_device),
            device_used_bytes=sum(each.used_bytes for each in on_device),
            device_bytes=0 if self._device is None else self._device.memory.size,
        )

    def peers(self) -> tuple[PeerReport, ...]:
        """The processes whose tensors were read, and how, the latest last."""
        return self._fetcher.peers()

    def counts(self) -> tuple[TransportCount, ...]:
        """What was read by each way since the start."""
        return self._fetcher.counts()

    async def negotiate(
        self, host: HostId, kinds: Iterable[TransportKind], *, on_device: bool = False
    ) -> Agreement:
        """What a peer on a host, which can read by these ways, is told; see `TensorService`.

        Args:
            host: The peer's.
            kinds: Its ways, the best first.
            on_device: Whether it is about tensors on the device.

        Raises:
            NoTransport: It cannot read this process by any of them.
        """
        missing: dict[str, None] = {}
        for kind in kinds:
            session = None
            if kind is TransportKind.SHARED_MEMORY and on_device:
                missing["tensors on a device cannot be mapped"] = None
                continue
            if kind is TransportKind.INLINE or (
                kind is TransportKind.SHARED_MEMORY and host != self._host
            ):
                missing[f"tensors are in memory of host {self._host}, the caller is elsewhere"] = (
                    None
                )
                continue
            if kind in MOONCAKE:
                try:
                    session = await self._session(kind, on_device=on_device)
                except SetupError as unavailable:
                    missing[unavailable.message] = None
                    continue
            return Agreement(
                kind=kind,
                incarnation=self.incarnation,
                session=session,
                missing="; ".join(missing),
            )
        raise NoTransport("; ".join(missing) or "the caller names no way that this process knows")

    async def pieces(
        self, incarnation: Incarnation, lease: LeaseId, token: TensorToken
    ) -> AsyncGenerator[memoryview | int, None]:
        """The bytes of a tensor for a byte stream, piece by piece, and at last their digest.

        Raises:
            ReadRefused: There is no such tensor, or not for this reader, or not any more.
        """
        publisher = self._publisher_of(lease)
        view = publisher.opened(incarnation, lease, token)
        summed = xxh3_64()
        size = min(max(len(view) // _SENT_PIECES, _LEAST_SENT_BYTES), _MOST_SENT_BYTES)
        for at in range(0, len(view), size):
            if not publisher.holds(lease):
                raise ReadRefused(Refusal.ENDED, f"lease {lease} ended while it was read")
            piece = view[at : at + size]
            summed.update(piece)
            yield piece
            if publisher is self._device_publisher:
                # The device was read on the event loop: others have their turn.
                await asyncio.sleep(0)
        yield summed.intdigest()

    async def digest(self, incarnation: Incarnation, lease: LeaseId, token: TensorToken) -> int:
        """The digest of a tensor that was published without.

        Raises:
            ReadRefused: There is no such tensor, or not for this reader.
        """
        publisher = self._publisher_of(lease)
        return await publisher.digest(publisher.opened(incarnation, lease, token))

    def close(self) -> None:
        """Ends every lease and wait, and removes the segment. Idempotent."""
        self._closed = True
        self._fetcher.close()
        self._regions.close()
        self._engines.close()
        for landing in self._landings:
            landing.close()
        for publisher in self._publishers:
            publisher.close()

    async def _fetched(
        self, ref: Tensor | TensorRef, owner: LeaseOwner, deadline: Deadline, *, to_device: bool
    ) -> Tensor | DeviceTensor:
        if isinstance(ref, Tensor):
            return ref
        if self._closed:
            raise plane_closed()
        check_length(ref)
        if ref.incarnation != self.incarnation:
            return await self._fetcher.fetch(
                ref, owner=owner, deadline=deadline, to_device=to_device
            )
        if not ref.on_device or self._device_publisher is None:
            return Tensor(header=ref.header, data=self._publisher.own(ref))
        tensor = self._device_publisher.own(ref)
        if to_device:
            return tensor
        pieces = self.pieces(ref.incarnation, ref.lease, ref.token)
        return await self._fetcher.land(ref, pieces, owner=owner, deadline=deadline)

    async def _session(self, kind: TransportKind, *, on_device: bool) -> TransferSession:
        if on_device:
            return await self._device_session(kind)
        engine = await self._engines.get(kind)
        slab = self._slab.slab
        self._publisher.digesting = True
        return TransferSession(name=engine.name, base=slab.address, segment=slab.name)

    async def _device_session(self, kind: TransportKind) -> TransferSession:
        if self._device is None:
            raise SetupError("there is no device memory for tensors")
        memory = self._device.memory
        engine = await self._engines.get_for(kind, memory)
        return TransferSession(name=engine.name, base=memory.address, segment=memory.device)

    @property
    def _publishers(self) -> tuple[Publisher[Any], ...]:
        device = self._device_publisher
        return (self._publisher,) if device is None else (self._publisher, device)

    @property
    def _landings(self) -> tuple[ReceiveRoom, ...]:
        device = self._fetcher.on_device
        return (self._received,) if device is None else (self._received, device)

    def _publisher_of(self, lease: LeaseId) -> Publisher[Any]:
        device = self._device_publisher
        return device if device is not None and device.holds(lease) else self._publisher

    def _on_device(self) -> tuple[RoomStatistics, ...]:
        """What the rooms on the device hold."""
        made, received = self._device_publisher, self._fetcher.on_device
        return (
            *(() if made is None else (made.statistics(),)),
            *(() if received is None else (received.room.statistics(),)),
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
