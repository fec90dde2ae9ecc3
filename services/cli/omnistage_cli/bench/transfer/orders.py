"""What the command and its two processes say to one another, and what the two say between them.

Apart from the code that does it, as the command reads this before it knows that anything is measured.
"""

from typing import Final

from msgspec import Struct

from omnistage_cli.bench.transfer.methods import Method
from omnistage_common.payloads import ElementType, TensorHeader, TensorRef

__all__ = [
    "CONTROL",
    "Answer",
    "Ask",
    "MeasureOrder",
    "Move",
    "Round",
    "Source",
    "SourceOrder",
    "header_of",
]

CONTROL: Final = "omnistage.bench.Transfer"
"""The gRPC service of the source: `Ask`, a stream of orders both ways, and `Get`, a unary call."""


class SourceOrder(Struct, frozen=True, kw_only=True):
    """What the producing process is told."""

    methods: tuple[Method, ...]
    sizes: tuple[int, ...]


class Source(Struct, frozen=True, kw_only=True):
    """Where it can be reached, all of it on loopback."""

    control: str
    socket_port: int


class MeasureOrder(Struct, frozen=True, kw_only=True):
    """What the consuming process is told."""

    source: Source
    methods: tuple[Method, ...]
    sizes: tuple[int, ...]
    rounds: int


class Move(Struct, frozen=True, kw_only=True):
    """One tensor that was moved; times in nanoseconds."""

    method: Method
    total: int
    """From the moment when the producer had it until the consumer could read all of it."""
    publish: int | None = None
    """Of it: until the producer had a reference; for the tensor plane, as are the others."""
    hand_over: int | None = None
    """Of it: until the consumer had that reference."""
    fetch: int | None = None
    """Of it: until the consumer had the bytes."""


class Round(Struct, frozen=True, kw_only=True):
    """What the consuming process prints, one a line: a tensor of one size, moved by every method."""

    bytes: int
    moves: tuple[Move, ...]


class Ask(Struct, frozen=True, kw_only=True):
    """What the consumer wants of the producer."""

    method: Method
    length: int = 0
    """0: it has done with what it got last."""


class Answer(Struct, frozen=True, kw_only=True):
    """What it gets; times in nanoseconds."""

    published: int = 0
    """When there was a reference, by the monotonic clock."""
    ref: TensorRef | None = None
    inline: bytes | None = None
    """In place of a reference."""
    copied: int = 0
    """What one copy took."""


def header_of(length: int) -> TensorHeader:
    """The header of every tensor that is moved."""
    return TensorHeader(element_type=ElementType.UINT8, shape=(length,))
