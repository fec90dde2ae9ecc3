"""The consumer's half of the plane: finds out how to read a producer, and reads.

The way to a producer is chosen with its first tensor and kept for its life: shared memory where its
segment can be opened here, else what both ends can do. A way that fails although the producer answers
is given up for that producer; the next best takes its place, once, and says so. A producer that does
not answer has lost its tensors.
"""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Final

import structlog
from xxhash import xxh3_64

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import DeadlineExceeded, SetupError, TensorLost
from omnistage_common.ids import HostId, Incarnation
from omnistage_common.payloads import TensorRef
from omnistage_common.tensors.calls import NoTransport
from omnistage_common.tensors.checking import (
    check_digest,
    check_sample,
    check_stamp,
    lost,
    reason,
)
from omnistage_common.tensors.leases import Lease, LeaseOwner
from omnistage_common.tensors.mooncake import Pull, missing_for
from omnistage_common.tensors.peers import Counters, Peer, Peers
from omnistage_common.tensors.receiving import ReceiveRoom
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
STALL: Final = 2.5
"""Seconds within which a transfer must begin: a handshake with a frozen peer blocks the engine."""
PATIENCE: Final = 30.0
"""Seconds within which something of it must come then. The engine notices by itself that a peer is
frozen, within two seconds; this is for when it does not."""


class _TransferFailed(Exception):
    """The transfer engine did not bring a tensor; whether the producer lives is not known."""


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
        received: ReceiveRoom,
        engines: TransferEngines,
    ) -> None:
        self._host = host
        self._kinds = kinds
        self._shared_memory = SharedMemoryTransport(host=host, directory=directory)
        self._received = received
        self._engines = engines
        self._peers = Peers()
        self._counters = Counters()

    async def fetch(self, ref: TensorRef, *, owner: LeaseOwner, deadline: Deadline) -> memoryview:
        """The bytes of a tensor of another process; see `TensorPlane.fetch`."""
        peer = self._peers.of(ref)
        failures = 0
        while True:
            agreement = await self._agreed(peer, ref, deadline)
            try:
                data = await self._read(agreement, peer, ref, owner=owner, deadline=deadline)
            except _TransferFailed as failed:
                failures += 1
                await self._mend(agreement, peer, ref, str(failed), deadline, failures=failures)
            except TensorLost:
                self._counters.add(agreement.kind, lost=1)
                raise
            else:
                peer.tensors += 1
                peer.bytes += ref.length
                self._counters.add(agreement.kind, tensors=1, read=ref.length)
                return data

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
        if ref.location.host != self._host:
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
            agreement = await peer.calls.negotiate(self._host, kinds, deadline, at_most=at_most)
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
    ) -> memoryview:
        if agreement.kind is TransportKind.SHARED_MEMORY:
            return self._shared_memory.read(ref)
        pulls = agreement.kind in MOONCAKE
        expected = ref.digest
        if pulls and expected is None:
            expected = await peer.calls.digest(ref, deadline)
        lease = await self._received.lease(ref, owner=owner, deadline=deadline)
        room = self._received.room
        with room.filling(lease) as filling:
            room.check_wanted(lease)
            block = self._received.block(lease)
            data = block[STAMP_BYTES:]
            if pulls:
                pull = await self._start_pull(agreement, ref, lease, block)
                filling.writer = pull.settled
                try:
                    await _moved(pull, ref, deadline)
                except _TransferFailed:
                    room.check_wanted(lease)
                    raise
                check_stamp(ref, read_stamp(block, STAMP_BYTES))
                found, sent = pull.digest, pull.digest
            else:
                found, sent = await self._streamed(peer, ref, lease, data, deadline)
            check_digest(ref, found, sent if expected is None else expected)
            check_sample(ref, data)
        return data.toreadonly()

    async def _start_pull(
        self, agreement: Agreement, ref: TensorRef, lease: Lease, block: memoryview
    ) -> Pull:
        session = agreement.session
        if session is None or session.segment != ref.location.segment:
            raise lost(ref, f"segment {ref.location.segment} is not that of its producer")
        engine = await self._engines.get(agreement.kind)
        return engine.pull(
            peer=session.name,
            remote=session.base + ref.location.offset - STAMP_BYTES,
            local=self._received.address(lease),
            target=block,
            skip=STAMP_BYTES,
        )

    async def _streamed(
        self, peer: Peer, ref: TensorRef, lease: Lease, data: memoryview, deadline: Deadline
    ) -> tuple[int, int]:
        """Fills the bytes from a stream; their digest, and the one that the producer sent."""
        summed, at, sent = xxh3_64(), 0, None
        async with aclosing(peer.calls.read(ref, deadline)) as pieces:
            async for piece in pieces:
                self._received.room.check_wanted(lease)
                if isinstance(piece, int):
                    sent = piece
                    continue
                if at + len(piece) > ref.length:
                    raise lost(ref, f"more than {ref.length} bytes came")
                data[at : at + len(piece)] = piece
                summed.update(piece)
                at += len(piece)
        if sent is None or at != ref.length:
            raise lost(ref, f"its stream ended after {at} of {ref.length} bytes")
        return summed.intdigest(), sent


async def _moved(pull: Pull, ref: TensorRef, deadline: Deadline) -> None:
    """Waits for a transfer.

    Raises:
        _TransferFailed: It failed, or nothing of it came for too long.
        DeadlineExceeded: The deadline passed.
    """
    before, limit = -1, STALL
    try:
        while not await _settles(pull, min(limit, deadline.remaining())):
            if deadline.passed:
                raise DeadlineExceeded(
                    f"{pull.moved} of the {ref.length} bytes of a tensor came before the request's"
                    " deadline"
                )
            if not pull.begun or pull.moved == before:
                raise _TransferFailed(f"nothing came for {limit} s")
            before, limit = pull.moved, PATIENCE
    finally:
        if not pull.settled.done():
            pull.cancel()
    if pull.failure:
        raise _TransferFailed(pull.failure)


async def _settles(pull: Pull, seconds: float) -> bool:
    """Whether a transfer has ended by then."""
    await asyncio.wait({pull.settled}, timeout=max(0.0, seconds))
    return pull.settled.done()
