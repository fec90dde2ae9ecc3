"""Which bytes of a slab are taken: a first-fit allocator over numbers, without the memory itself.

A slab has a fixed size and never grows, so an allocation that does not fit is an answer (None) and
not an error: whoever asked waits. Low addresses are preferred, which keeps the part of the slab
that was ever touched, and so the memory it costs, small. Free neighbours are always merged, so the
list of free blocks is as short as the free space is fragmented.
"""

from bisect import bisect_left, insort
from typing import Final

from msgspec import Struct

__all__ = ["ALIGNMENT", "AllocationStatistics", "Allocator"]

ALIGNMENT: Final = 64
"""Bytes: a cache line, and enough for every vector unit."""


class AllocationStatistics(Struct, frozen=True, kw_only=True):
    """What is taken and what is free, in bytes unless said otherwise."""

    capacity: int
    used: int
    """Including what alignment wastes."""
    allocations: int
    """How many."""
    free_blocks: int
    """How many; 1 or 0 when nothing is fragmented."""
    largest_free: int


class Allocator:
    """Hands out offsets below a fixed capacity.

    Args:
        capacity: Bytes; what is not a multiple of `ALIGNMENT` at the end is not used.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity - capacity % ALIGNMENT
        self._taken: dict[int, int] = {}
        self._free: list[tuple[int, int]] = [(0, self.capacity)] if self.capacity else []
        self._used = 0

    def allocate(self, size: int) -> int | None:
        """The offset of `size` free bytes, a multiple of `ALIGNMENT`, or None when none fit now.

        Raises:
            ValueError: The size is not positive.
        """
        if size <= 0:
            raise ValueError(f"cannot allocate {size} bytes: the size must be positive")
        rounded = _rounded(size)
        for index, (offset, room) in enumerate(self._free):
            if room >= rounded:
                if room == rounded:
                    del self._free[index]
                else:
                    self._free[index] = (offset + rounded, room - rounded)
                self._taken[offset] = rounded
                self._used += rounded
                return offset
        return None

    def fits(self, size: int) -> bool:
        """Whether `size` bytes fit when nothing is taken."""
        return _rounded(size) <= self.capacity

    def free(self, offset: int) -> None:
        """Gives back what `allocate` answered.

        Raises:
            ValueError: Nothing is allocated at this offset.
        """
        size = self._taken.pop(offset, 0)
        if size == 0:
            raise ValueError(f"nothing is allocated at offset {offset}")
        self._used -= size
        index = bisect_left(self._free, (offset, 0))
        if index < len(self._free) and self._free[index][0] == offset + size:
            size += self._free.pop(index)[1]
        if index > 0 and sum(self._free[index - 1]) == offset:
            offset, before = self._free.pop(index - 1)
            size += before
        insort(self._free, (offset, size))

    def statistics(self) -> AllocationStatistics:
        """What is taken and what is free now."""
        return AllocationStatistics(
            capacity=self.capacity,
            used=self._used,
            allocations=len(self._taken),
            free_blocks=len(self._free),
            largest_free=max((room for _, room in self._free), default=0),
        )


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
