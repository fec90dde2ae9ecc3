"""The ways to move a tensor that are compared, and what is known of them before anything moves."""

from enum import Enum
from typing import Final

from omnistage_common.payloads import INLINE_LIMIT
from omnistage_common.tensors import TransportKind
from omnistage_common.tensors.mooncake import missing_for

__all__ = ["MIB", "PAUSES", "SIZES", "TRANSPORTS", "Method", "lacking", "moves", "turns"]

KIB: Final = 1024
MIB: Final = 1024 * KIB

SIZES: Final = (4 * KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
"""Bytes of the tensors that are moved unless others are asked for."""
_LIGHT: Final = MIB
_LIGHT_TURNS: Final = 5


class Method(Enum):
    """A way to move a tensor; the value is its name in the report."""

    COPY = "copy"
    """One copy within a process: what every other way has to do at least."""
    SOCKET = "socket"
    """A plain TCP connection over loopback."""
    GRPC_UNARY = "grpc_unary"
    """Bytes as the answer of a unary call."""
    INLINE = "inline"
    """The tensor plane, for what is small enough to ride within a control message."""
    SHARED_MEMORY = "shared_memory"
    """The tensor plane by shared memory."""
    MOONCAKE_TCP = "mooncake_tcp"
    """The tensor plane by Mooncake over TCP."""
    MOONCAKE_RDMA = "mooncake_rdma"
    """The tensor plane by Mooncake over RDMA."""
    STREAM = "stream"
    """The tensor plane by a gRPC byte stream."""
    HAND_OFF = "hand_off"
    """From the engine of one stage to the engine of the next, over a `Stream` edge, one right after
    the other."""
    HAND_OFF_IDLE = "hand_off_idle"
    """The same at the pace of codec frames, 50 a second: both stages sleep in between."""


TRANSPORTS: Final = {
    Method.INLINE: TransportKind.SHARED_MEMORY,
    Method.SHARED_MEMORY: TransportKind.SHARED_MEMORY,
    Method.MOONCAKE_TCP: TransportKind.TCP,
    Method.MOONCAKE_RDMA: TransportKind.RDMA,
    Method.STREAM: TransportKind.STREAM,
}
"""The methods of the tensor plane -> by which transport the consumer may read, and no other."""

PAUSES: Final = {Method.HAND_OFF: 0.001, Method.HAND_OFF_IDLE: 0.02}
"""The methods between stages -> seconds from one tensor to the next."""


def moves(method: Method, length: int) -> bool:
    """Whether a method moves tensors of that many bytes between the two processes.

    The plane sends small tensors inline and nothing else so, whatever the transport.
    """
    if method in PAUSES:
        return False
    if method in TRANSPORTS:
        return (method is Method.INLINE) == (length <= INLINE_LIMIT)
    return True


def turns(length: int) -> int:
    """Transfers by each method in one round: small ones are over before the noise is."""
    return _LIGHT_TURNS if length <= _LIGHT else 1


def lacking(method: Method) -> str:
    """What a method lacks on this machine, in words; empty when nothing."""
    if method in (Method.MOONCAKE_TCP, Method.MOONCAKE_RDMA):
        return missing_for(TRANSPORTS[method])
    return ""
