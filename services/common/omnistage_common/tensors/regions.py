"""Memory as the machinery under Python sees it: an address and a size.

The plane has at most two regions on the host: the slab, which holds what was published, and the room
for what is received; and beside each one on a device, where there is a device. A transfer engine registers a region, a GPU driver locks its pages; both want to hear of
it once, whether it exists already or is made later, and both must let go before it ends. The plane
imports neither: they come as callbacks. What is on a device is looked at through `Octets`, as what
is on the host is, but every look copies: so sums and checks are written once and look at little.
"""

import ctypes
import mmap
from collections.abc import Callable
from typing import Protocol

from omnistage_common.payloads import DeviceMemory

__all__ = ["DeviceOctets", "Octets", "PageLock", "PrivateMemory", "Region", "RegionWatchers"]

PageLock = Callable[[int, int], Callable[[], None]]
"""Locks the pages of `(address, bytes)`; what it returns unlocks them."""


class Region(Protocol):
    """Memory that stays where it is."""

    address: int
    """Of its first byte."""
    size: int
    """Bytes."""

    def claim_all(self) -> None:
        """Takes all of it from the system now."""


class Octets(Protocol):
    """Bytes that are looked at in slices without gaps: a memoryview of them, or a stand-in."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> memoryview: ...


class DeviceOctets:
    """Bytes on a device; a slice is a copy of them, to be kept small."""

    def __init__(self, memory: DeviceMemory, offset: int, length: int) -> None:
        self._memory = memory
        self._offset = offset
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice, /) -> memoryview:
        start, stop, _ = part.indices(self._length)
        return self._memory.read(self._offset + start, max(0, stop - start))


class PrivateMemory:
    """Memory of this process alone; costs what was ever written to it.

    Args:
        size: Bytes.
    """

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self._map)
        """All of it, writable."""
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.size = size

    def claim_all(self) -> None:
        """Nothing to do: the kernel takes what is locked."""


class RegionWatchers:
    """Those who want to hear of a region, and what they have done to it."""

    def __init__(self) -> None:
        self._regions: list[Region] = []
        self._watchers: list[tuple[PageLock, bool]] = []
        self._undo: list[Callable[[], None]] = []

    def watch(self, watcher: PageLock, *, whole: bool) -> None:
        """Has the watcher hear of every region, those that exist and those to come.

        Args:
            watcher: Called with address and size; what it returns is called before the region ends.
            whole: Whether it needs every page to be there, and not only those in use.

        Raises:
            SetupError: A region could not be had whole.
        """
        self._watchers.append((watcher, whole))
        for region in self._regions:
            self._tell(watcher, region, whole=whole)

    def made(self, region: Region) -> None:
        """There is a new region.

        Raises:
            SetupError: It could not be had whole, and somebody wants it.
        """
        self._regions.append(region)
        for watcher, whole in self._watchers:
            self._tell(watcher, region, whole=whole)

    def close(self) -> None:
        """Undoes what watchers have done; to be called before the regions end. Idempotent."""
        undo, self._undo = self._undo, []
        for step in reversed(undo):
            step()
        self._regions.clear()
        self._watchers.clear()

    def _tell(self, watcher: PageLock, region: Region, *, whole: bool) -> None:
        if whole:
            region.claim_all()
        self._undo.append(watcher(region.address, region.size))
