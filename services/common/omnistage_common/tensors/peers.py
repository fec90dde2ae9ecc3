"""What a consumer remembers of the processes whose tensors it reads.

A peer is one life of one producer, and of that the memory of the host or the device, as ways may differ
between the two. The way to it is chosen once and kept; what was tried in vain is
kept with it, in words. The table is bounded: a peer that was not read from for long gives way, and so
does an earlier life at the same address.
"""

import asyncio
from collections import OrderedDict
from typing import Final

from omnistage_common.ids import Incarnation
from omnistage_common.payloads import TensorRef
from omnistage_common.tensors.calls import PeerCalls
from omnistage_common.tensors.transport import (
    Agreement,
    PeerReport,
    TransportCount,
    TransportKind,
)

__all__ = ["Counters", "Peer", "Peers"]

MAX_PEERS: Final = 256
"""Channels and choices that are kept."""


class Peer:
    """One life of one producer."""

    def __init__(self, incarnation: Incarnation, address: str, *, on_device: bool = False) -> None:
        self.incarnation = incarnation
        self.address = address
        self.on_device = on_device
        """Whether it is about tensors on the producer's device."""
        self.choosing = asyncio.Lock()
        """Held by the one who finds out how to read it."""
        self.agreement: Agreement | None = None
        """The way to it; None until it is known."""
        self.given_up: dict[TransportKind, str] = {}
        """Ways that do not work with it, and why."""
        self.tensors = 0
        self.bytes = 0
        self._calls: PeerCalls | None = None

    @property
    def calls(self) -> PeerCalls:
        """Its TensorService; to be used on the event loop only."""
        if self._calls is None:
            self._calls = PeerCalls(self.address)
        return self._calls

    @property
    def fallback(self) -> str:
        """Why no better way was chosen, in words."""
        return "; ".join(f"{kind.value}: {why}" for kind, why in self.given_up.items())


class Peers:
    """The table."""

    def __init__(self) -> None:
        self._peers: OrderedDict[tuple[Incarnation, bool], Peer] = OrderedDict()

    def of(self, ref: TensorRef) -> Peer:
        """The peer that holds a tensor."""
        key = ref.incarnation, ref.on_device
        peer = self._peers.get(key)
        if peer is None:
            self._make_room(ref)
            peer = Peer(ref.incarnation, ref.address, on_device=ref.on_device)
            self._peers[key] = peer
        self._peers.move_to_end(key)
        return peer

    def forget(self, incarnation: Incarnation) -> None:
        """Drops a peer, and its channel when nobody uses it any more. Idempotent."""
        for on_device in (False, True):
            self._peers.pop((incarnation, on_device), None)

    def reports(self) -> tuple[PeerReport, ...]:
        """Those to which there is a way, the latest used last."""
        return tuple(
            PeerReport(
                incarnation=peer.incarnation,
                address=peer.address,
                kind=peer.agreement.kind,
                tensors=peer.tensors,
                bytes=peer.bytes,
                fallback=peer.fallback,
                on_device=peer.on_device,
            )
            for peer in self._peers.values()
            if peer.agreement is not None
        )

    def clear(self) -> None:
        """Drops all."""
        self._peers.clear()

    def _make_room(self, ref: TensorRef) -> None:
        for peer in tuple(self._peers.values()):
            if ref.address and peer.address == ref.address and peer.incarnation != ref.incarnation:
                self.forget(peer.incarnation)
        while len(self._peers) >= MAX_PEERS:
            self._peers.popitem(last=False)


class Counters:
    """What came by each way since the start."""

    def __init__(self) -> None:
        self._counts: dict[TransportKind, TransportCount] = {}

    def add(
        self,
        kind: TransportKind,
        *,
        tensors: int = 0,
        read: int = 0,
        lost: int = 0,
        fallbacks: int = 0,
    ) -> None:
        """Counts on."""
        before = self._counts.get(kind) or TransportCount(kind=kind)
        self._counts[kind] = TransportCount(
            kind=kind,
            tensors=before.tensors + tensors,
            bytes=before.bytes + read,
            lost=before.lost + lost,
            fallbacks=before.fallbacks + fallbacks,
        )

    def all(self) -> tuple[TransportCount, ...]:
        """The counts of every way that was ever taken or given up."""
        return tuple(self._counts.values())
