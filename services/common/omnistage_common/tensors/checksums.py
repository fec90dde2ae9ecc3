"""What tells the bytes that were published from others.

Two sums, both XXH3-64. The *checksum* is over the header and a bounded sample of the bytes, so its
cost does not grow with the tensor: enough within a host, where nothing can damage bytes on their way
and the stamp in front of them finds references that are out of date. The *digest* is over all bytes,
for what crosses a network.
"""

from typing import Final

from xxhash import xxh3_64

from omnistage_common.payloads import TensorHeader
from omnistage_common.tensors.regions import Octets

__all__ = ["SAMPLED_WHOLE", "sample_checksum", "whole_digest"]

SAMPLED_WHOLE: Final = 256 * 1024
"""Bytes up to which a sample is all there is."""

_EDGE: Final = 16 * 1024
"""Bytes of the sample at each end: what is cut off or overrun shows there."""
_PAGE: Final = 4096
_PAGES: Final = 15
"""Pages of the sample between the ends."""
_PIECE: Final = 1024 * 1024


def sample_checksum(header: TensorHeader, data: Octets) -> int:
    """The checksum of a tensor.

    Args:
        header: Of the tensor.
        data: Its bytes; only what is summed up is looked at.
    """
    summed = xxh3_64(_described(header))
    length = len(data)
    if length <= SAMPLED_WHOLE:
        summed.update(data[:])
        return summed.intdigest()
    summed.update(data[:_EDGE])
    step = (length - 2 * _EDGE) // (_PAGES + 1)
    for number in range(1, _PAGES + 1):
        at = _EDGE + number * step
        summed.update(data[at : at + _PAGE])
    summed.update(data[-_EDGE:])
    return summed.intdigest()


def whole_digest(data: Octets) -> int:
    """The digest of a tensor, with no more than a piece of it in memory of the host at a time."""
    summed = xxh3_64()
    for at in range(0, len(data), _PIECE):
        summed.update(data[at : at + _PIECE])
    return summed.intdigest()


def _described(header: TensorHeader) -> bytes:
    return f"{header.element_type.value}{header.shape}{header.rate_hz}".encode()
