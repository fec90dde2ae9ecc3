"""What is in the tensors that are moved: when each left, and bytes that are known at both ends.

So that a consumer can tell how long it took, and that it did not get the tensor before.
"""

import random
import time
from functools import cache
from typing import Final

from xxhash import xxh3_64, xxh3_64_intdigest

from omnistage_common.errors import ServerError

__all__ = ["STAMP", "check", "departure", "filled", "stamp"]

STAMP: Final = 8
"""Bytes at the front: when it left, in nanoseconds of the monotonic clock, little endian."""
_TILE: Final = 1024 * 1024


@cache
def _tile() -> bytes:
    return random.Random(0).randbytes(_TILE)  # noqa: S311 - known at both ends


def filled(length: int) -> bytearray:
    """Memory of that many bytes with the contents of a tensor, all of it touched."""
    whole, rest = divmod(length, _TILE)
    return bytearray().join([_tile()] * whole + [_tile()[:rest]])


def stamp(tensor: memoryview) -> int:
    """Notes in a tensor that it leaves now; the same in nanoseconds."""
    now = time.monotonic_ns()
    tensor[:STAMP] = now.to_bytes(STAMP, "little")
    return now


def departure(tensor: bytes | memoryview) -> int:
    """When a tensor left, in nanoseconds."""
    return int.from_bytes(tensor[:STAMP], "little")


def check(tensor: bytes | memoryview, length: int) -> None:
    """Reads every byte of a tensor that arrived.

    Raises:
        ServerError: They are not those that were sent.
    """
    if len(tensor) != length or xxh3_64_intdigest(memoryview(tensor)[STAMP:]) != _digest(length):
        raise ServerError(f"a tensor of {length} bytes arrived with others than were sent")


@cache
def _digest(length: int) -> int:
    summed, at = xxh3_64(), STAMP
    while at < length:
        start = at % _TILE
        summed.update(_tile()[start : start + length - at])
        at += min(_TILE - start, length - at)
    return summed.intdigest()
