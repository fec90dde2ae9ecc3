"""The consumer's half of the plane: finds out how to read a producer, and reads.

The way to a producer is chosen with its first tensor and kept for its life: shared memory where its
segment can be opened here, else what both ends can do; and once more for what lies on its device, which
cannot be mapped. A way that fails although the producer answers
is given up for that producer; the next best takes its place, once, and says so. A producer that does
not answer has lost its tensors.

What comes lands on the host, or on a device where the reader wants that, there is room for received
tensors on it, and the way leads there.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Final

import structlog
from xxhash import xxh3_64

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import SetupError, TensorLost
from omnistage_common.ids import HostId, Incarnation
from omnistage_common.payloads import DeviceTensor, SharedMemoryLocation, Tensor, TensorRef
from omnistage_common.tensors.calls import NoTransport
from omnistage_common.tensors.checking import (
    check_digest,
    check_sample,
    check_stamp,
    lost,
    reason,
)
from omnistage_common.tensors.leases import Lease, LeaseOwner
from omnistage_common.tensors.mooncake import missing_for
from omnistage_common.tensors.moving import TransferFailed, moved
from omnistage_common.tensors.peers import Counters, Peer, Peers
from omnistage_common.tensors.receiving import HostReceiveRoom, ReceiveRoom
from omnistage_common.tensors.room import Filling
from omnistage_common.tensors.segments import STAMP_BYTES, read_stamp
from omnistage_common.tensors.sessions import TransferEngines
from omnistage_common.tensors.shared_memory import SharedMemoryTransport
from omnistage_common.tensors.transport import (
    MOONCAKE,
    Agreement,
    PeerReport,
    TransportCount,
    TransportKind,
)

__all__ = ["Fetcher"]

_log = structlog.get_logger()

NEGOTIATION: Final = 3.0
"""Seconds a peer has to say by which way it can be read; its transfer engine may have to start."""
PROBE: Final = 0.7
"""Seconds a peer has to say that it lives, after a transfer from it has failed."""
ATTEMPTS: Final = 2
"""Transfers of one tensor that must fail before a way to a peer that lives is given up: connections
that were kept while it was away fail once."""


class Fetcher:
    """See the module.

    Args:
        host: This host.
        kinds: Ways that may be taken, the best first.
        directory: Folder of the shared memory segments.
        received: Room for what comes over a network.
        engines: Transfer engines of this process.
    """

    def __init__(
        self,
        *,
        host: HostId,
        kinds: tuple[TransportKind, ...],
        directory: Path,
        received: HostReceiveRoom,
        engines: TransferEngines,
    ) -> None:
        self._host = host
        self._kinds = kinds
        self._shared_memory = SharedMemoryTransport(host=host, directory=directory)
        self._received = received
        self.on_device: ReceiveRoom | None = None
        """Room for what comes over a network, on a device."""
        self._engines = engines
        self._peers = Peers()
        self._counters = Counters()

    async def fetch(
        self, ref: TensorRef, *, owner: LeaseOwner, deadline: Deadline, to_device: bool
    ) -> Tensor | DeviceTensor:
        """A tensor of another process; see `TensorPlane.fetch`."""
        peer = self._peers.of(ref)
        failures = 0
        while True:
            agreement = await self._agreed(peer, ref, deadline)
            try:
                tensor = await self._read(
                    agreement, peer, ref, owner=owner, deadline=deadline, to_device=to_device
                )
            except TransferFailed as failed:
                failures += 1
                await self._mend(agreement, peer, ref, str(failed), deadline, failures=failures)
            except TensorLost:
                self._counters.add(agreement.kind, lost=1)
                raise
            else:
                peer.tensors += 1
                peer.bytes += ref.length
                self._counters.add(agreement.kind, tensors=1, read=ref.length)
                return tensor

    async def land(
        self,
        ref: TensorRef,
        pieces: AsyncGenerator[bytes | memoryview | int, None],
        *,
        owner: LeaseOwner,
        deadline: Deadline,
        landing: ReceiveRoom | None = None,
    ) -> Tensor | DeviceTensor:
        """A tensor whose bytes come in pieces, and at last their digest.

        Raises:
            TensorLost: They are not those that were published.
            OmnistageError: As `Room.lease`, or whatever ends the pieces.
        """
        landing = landing or self._received
        lease = await landing.lease(ref, owner=owner, deadline=deadline)
        with landing.room.filling(lease):
            landing.room.check_wanted(lease)
            found, sent = await self._streamed(ref, lease, pieces, landing)
            check_digest(ref, found, sent if ref.digest is None else ref.digest)
            check_sample(ref, landing.octets(lease))
        return landing.tensor(lease, ref.header)

    def forget(self, incarnation: Incarnation) -> None:
        """Lets go of what is kept of another process; views of it stay valid. Idempotent."""
        self._peers.forget(incarnation)
        self._shared_memory.forget(incarnation)

    @property
    def mapped(self) -> int:
        """How many segments are kept mapped."""
        return self._shared_memory.mapped

    def peers(self) -> tuple[PeerReport, ...]:
        """Those whose tensors were read, the latest last."""
        return self._peers.reports()

    def counts(self) -> tuple[TransportCount, ...]:
        """What came by each way since the start."""
        return self._counters.all()

    def close(self) -> None:
        """Lets go of everything. Idempotent."""
        self._peers.clear()
        self._shared_memory.close()

    async def _agreed(self, peer: Peer, ref: TensorRef, deadline: Deadline) -> Agreement:
        if peer.agreement is not None:
            return peer.agreement
        async with peer.choosing:
            if peer.agreement is None:
                try:
                    peer.agreement = await self._choose(peer, ref, deadline)
                except TensorLost:
                    self._peers.forget(peer.incarnation)
                    self._counters.add(self._kinds[0], lost=1)
                    raise
        return peer.agreement

    async def _choose(self, peer: Peer, ref: TensorRef, deadline: Deadline) -> Agreement:
        """Finds the best way to a peer; what is worse than hoped for is noted and said.

        Raises:
            TensorLost: There is none, or the peer is gone.
        """
        tried: dict[TransportKind, str] = {}
        kinds = [kind for kind in self._kinds if kind not in peer.given_up]
        if ref.on_device and TransportKind.SHARED_MEMORY in kinds:
            kinds.remove(TransportKind.SHARED_MEMORY)
        if TransportKind.SHARED_MEMORY in kinds:
            kinds.remove(TransportKind.SHARED_MEMORY)
            try:
                self._shared_memory.reach(ref)
            except TensorLost as unreachable:
                tried[TransportKind.SHARED_MEMORY] = reason(ref, unreachable)
            else:
                return Agreement(kind=TransportKind.SHARED_MEMORY, incarnation=ref.incarnation)
        for kind in [kind for kind in kinds if kind in MOONCAKE]:
            missing = missing_for(kind)
            if missing:
                tried[kind] = f"{missing} here"
                kinds.remove(kind)
        agreement = await self._negotiated(kinds, tried, peer, ref, deadline)
        location = ref.location
        if isinstance(location, SharedMemoryLocation) and location.host != self._host:
            tried.pop(TransportKind.SHARED_MEMORY, None)
        self._note(peer, tried, agreement.kind)
        return agreement

    async def _negotiated(
        self,
        kinds: list[TransportKind],
        tried: dict[TransportKind, str],
        peer: Peer,
        ref: TensorRef,
        deadline: Deadline,
    ) -> Agreement:
        while kinds and peer.address:
            agreement = await self._asked(kinds, peer, ref, deadline, at_most=NEGOTIATION)
            if agreement.missing:
                better = kinds[: kinds.index(agreement.kind)]
                tried.update(dict.fromkeys(better, f"the producer says: {agreement.missing}"))
            if agreement.kind not in MOONCAKE:
                return agreement
            try:
                await self._engines.get(agreement.kind)
            except SetupError as unavailable:
                tried[agreement.kind] = unavailable.message
                kinds.remove(agreement.kind)
            else:
                return agreement
        if not peer.address:
            tried[TransportKind.STREAM] = "its producer has no TensorService for other hosts"
        if not tried:
            tried[TransportKind.SHARED_MEMORY] = "it is on a device, which nobody can map"
        allowed = ", ".join(kind.value for kind in self._kinds)
        raise lost(ref, f"no way to its producer (allowed: {allowed}): {'; '.join(tried.values())}")

    async def _asked(
        self,
        kinds: list[TransportKind],
        peer: Peer,
        ref: TensorRef,
        deadline: Deadline,
        *,
        at_most: float,
    ) -> Agreement:
        """What a peer answers.

        Raises:
            TensorLost: It does not, or it is another life of the producer.
        """
        try:
            agreement = await peer.calls.negotiate(
                self._host, kinds, deadline, at_most=at_most, on_device=peer.on_device
            )
        except NoTransport as none:
            raise lost(ref, f"its producer says: {none.message}") from none
        except TensorLost as gone:
            raise lost(ref, f"its producer does not answer ({gone.message})") from gone
        if agreement.incarnation != ref.incarnation:
            raise lost(ref, f"its producer is gone: {peer.address} is {agreement.incarnation} now")
        return agreement

    def _note(self, peer: Peer, tried: dict[TransportKind, str], taken: TransportKind) -> None:
        peer.given_up.update(tried)
        for kind, why in tried.items():
            self._counters.add(kind, fallbacks=1)
            _log.warning(
                "tensor transport falls back",
                peer=peer.address or peer.incarnation,
                wanted=kind.value,
                taken=taken.value,
                why=why,
            )

    async def _mend(
        self,
        agreement: Agreement,
        peer: Peer,
        ref: TensorRef,
        why: str,
        deadline: Deadline,
        *,
        failures: int,
    ) -> None:
        """Decides what to do after a transfer failed: once more, if the peer lives, or another way.

        Raises:
            TensorLost: The peer is gone, or no other way is allowed.
        """
        async with peer.choosing:
            if peer.agreement is not agreement:
                return
            tried = {*peer.given_up, TransportKind.SHARED_MEMORY}
            kinds = [kind for kind in self._kinds if kind not in tried]
            try:
                if failures >= ATTEMPTS:
                    kinds.remove(agreement.kind)
                if not kinds:
                    raise lost(ref, "no other way to its producer is allowed")
                other = await self._asked(kinds, peer, ref, deadline, at_most=PROBE)
            except TensorLost as gone:
                self.forget(peer.incarnation)
                self._counters.add(agreement.kind, lost=1)
                raise lost(ref, f"{why}; {reason(ref, gone)}") from gone
            if failures >= ATTEMPTS:
                peer.agreement = None
                self._note(peer, {agreement.kind: why}, other.kind)

    async def _read(
        self,
        agreement: Agreement,
        peer: Peer,
        ref: TensorRef,
        *,
        owner: LeaseOwner,
        deadline: Deadline,
        to_device: bool,
    ) -> Tensor | DeviceTensor:
        if agreement.kind is TransportKind.SHARED_MEMORY:
            return Tensor(header=ref.header, data=self._shared_memory.read(ref))
        landing = await self._landing(agreement.kind) if to_device else self._received
        if agreement.kind not in MOONCAKE:
            pieces = peer.calls.read(ref, deadline)
            return await self.land(ref, pieces, owner=owner, deadline=deadline, landing=landing)
        expected = ref.digest
        if expected is None and _summed(ref, landing):
            expected = await peer.calls.digest(ref, deadline)
        lease = await landing.lease(ref, owner=owner, deadline=deadline)
        room = landing.room
        with room.filling(lease) as filling:
            room.check_wanted(lease)
            try:
                digest = await self._pulled(agreement, ref, lease, landing, filling, deadline)
            except TransferFailed:
                room.check_wanted(lease)
                raise
            if expected is not None and digest is not None:
                check_digest(ref, digest, expected)
            check_sample(ref, landing.octets(lease))
        return landing.tensor(lease, ref.header)

    async def _landing(self, kind: TransportKind) -> ReceiveRoom:
        """Room on the device, where there is any and this way leads there; else on the host."""
        landing = self.on_device
        if landing is None or landing.memory is None:
            return self._received
        if kind in MOONCAKE:
            try:
                await self._engines.get_for(kind, landing.memory)
            except SetupError:
                return self._received
        return landing

    async def _pulled(
        self,
        agreement: Agreement,
        ref: TensorRef,
        lease: Lease,
        landing: ReceiveRoom,
        filling: Filling,
        deadline: Deadline,
    ) -> int | None:
        """Has the engine bring a tensor with its stamp; its digest, where the host can work it out.

        Where it cannot, the stamp is read once more when everything is there: the producer takes it
        away before anything else is written to the place, so the bytes are all of this lease.

        Raises:
            TransferFailed: The engine did not bring it.
            TensorLost: The stamp is not that of the tensor.
        """
        session = agreement.session
        if session is None or session.segment != _place(ref):
            raise lost(ref, f"{_place(ref)} is not what its producer registered")
        engine = await self._engines.get(agreement.kind)
        block, stamp = landing.block(lease), landing.stamp(lease)
        summed = _summed(ref, landing)
        for target in (block,) if summed else (block, stamp):
            pull = engine.pull(
                peer=session.name,
                remote=session.base + ref.location.offset - STAMP_BYTES,
                local=landing.address(lease),
                target=target,
                skip=STAMP_BYTES if summed else None,
            )
            filling.writer = pull.settled
            await moved(pull, ref, deadline)
            check_stamp(ref, read_stamp(stamp[:], STAMP_BYTES))
        return pull.digest if summed else None

    async def _streamed(
        self,
        ref: TensorRef,
        lease: Lease,
        pieces: AsyncGenerator[bytes | memoryview | int, None],
        landing: ReceiveRoom,
    ) -> tuple[int, int]:
        """Fills the bytes from a stream; their digest, and the one that the producer sent."""
        summed, at, sent = xxh3_64(), 0, None
        async with aclosing(pieces):
            async for piece in pieces:
                landing.room.check_wanted(lease)
                if isinstance(piece, int):
                    sent = piece
                    continue
                if at + len(piece) > ref.length:
                    raise lost(ref, f"more than {ref.length} bytes came")
                landing.write(lease, at, piece)
                summed.update(piece)
                at += len(piece)
        if sent is None or at != ref.length:
            raise lost(ref, f"its stream ended after {at} of {ref.length} bytes")
        return summed.intdigest(), sent


def _place(ref: TensorRef) -> str:
    location = ref.location
    return location.segment if isinstance(location, SharedMemoryLocation) else location.device


def _summed(ref: TensorRef, landing: ReceiveRoom) -> bool:
    """Whether all bytes are summed up: both ends have them in memory of the host."""
    return not ref.on_device and landing.memory is None
