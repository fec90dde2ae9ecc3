"""The ways in which a process reads tensors of others, and what is agreed with each of them.

A *kind* is a way; which one is taken is chosen once per peer, by what both ends can do, in the order
in which the process likes them. Values only: no I/O.
"""

from enum import Enum
from typing import Final

from msgspec import Struct

from omnistage_common.ids import Incarnation

__all__ = [
    "EVERY_TRANSPORT",
    "MOONCAKE",
    "Agreement",
    "PeerReport",
    "TransferSession",
    "TransportCount",
    "TransportKind",
]


class TransportKind(Enum):
    """Ways to move a tensor's bytes; the value is its name in metrics."""

    INLINE = "inline"
    """Within the control message."""
    SHARED_MEMORY = "shared_memory"
    """A segment mapped by both processes of one host, read in place."""
    RDMA = "rdma"
    """The Mooncake transfer engine over RDMA."""
    TCP = "tcp"
    """The Mooncake transfer engine over TCP."""
    STREAM = "stream"
    """A gRPC byte stream."""


EVERY_TRANSPORT: Final = (
    TransportKind.SHARED_MEMORY,
    TransportKind.RDMA,
    TransportKind.TCP,
    TransportKind.STREAM,
)
"""All between processes, the best first."""

MOONCAKE: Final = frozenset({TransportKind.RDMA, TransportKind.TCP})
"""Those that need the transfer engine at both ends."""


class TransferSession(Struct, frozen=True, kw_only=True):
    """The slab of a process, or its device region, as its transfer engine has registered it."""

    name: str
    """`HOST:PORT` of the engine's handshake."""
    base: int
    """Address of the first byte in the process."""
    segment: str
    """Name of the segment, or of the device."""


class Agreement(Struct, frozen=True, kw_only=True):
    """What a peer answers when it is asked by which way it can be read."""

    kind: TransportKind
    incarnation: Incarnation
    session: TransferSession | None = None
    """For ways that need the transfer engine."""
    missing: str = ""
    """Why a better way is not there, in words."""


class PeerReport(Struct, frozen=True, kw_only=True):
    """A process whose tensors this one reads."""

    incarnation: Incarnation
    address: str
    """`HOST:PORT` of its TensorService; empty when it has none."""
    kind: TransportKind
    """The way that was chosen for it."""
    tensors: int
    """Read from it."""
    bytes: int
    """Of them."""
    fallback: str
    """Why no better way was chosen, in words; empty when there is none."""
    on_device: bool = False
    """Whether it is about tensors on its device."""


class TransportCount(Struct, frozen=True, kw_only=True):
    """What came by one way since the start."""

    kind: TransportKind
    tensors: int = 0
    bytes: int = 0
    lost: int = 0
    """Reads that found the tensor lost."""
    fallbacks: int = 0
    """Peers for which this way was not to be had, though it would have been better."""
