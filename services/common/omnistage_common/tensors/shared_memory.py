"""The shared memory transport: reads tensors straight from the segments of other processes.

A consumer maps a producer's segment once, read-only, and hands out views of it: nothing is copied.
Mappings are never closed by hand. They are forgotten, and the interpreter unmaps one when its last
view is gone; so there is no moment at which a view could point at nothing. A producer that died
leaves a mapping behind; the next producer that is mapped (its successor, for one) sweeps it out.

Two processes with the same boot id need not share a folder: each container may have its own. So
whether a producer can be read this way is found out by trying.
"""

import mmap
import os
import stat
from pathlib import Path

from msgspec import Struct

from omnistage_common.errors import TensorLost
from omnistage_common.ids import HostId, Incarnation
from omnistage_common.payloads import SharedMemoryLocation, TensorRef
from omnistage_common.tensors.checking import check_sample, check_stamp, lost
from omnistage_common.tensors.segments import (
    HEADER_BYTES,
    STAMP_BYTES,
    is_segment_name,
    read_header,
    read_stamp,
)

__all__ = ["SharedMemoryTransport"]


class _Mapping(Struct, frozen=True, kw_only=True):
    """A segment of another process."""

    incarnation: Incarnation
    """Whose it was when it was mapped."""
    memory: memoryview
    """All of it, read-only."""


class SharedMemoryTransport:
    """Reads the segments of this host.

    Args:
        host: This host; a segment of another one is out of reach.
        directory: Folder of the segments.
    """

    def __init__(self, *, host: HostId, directory: Path) -> None:
        self._host = host
        self._directory = directory
        self._mappings: dict[str, _Mapping] = {}

    @property
    def mapped(self) -> int:
        """How many segments are kept mapped."""
        return len(self._mappings)

    def reach(self, ref: TensorRef) -> None:
        """Makes sure that the producer of a tensor can be read this way.

        Raises:
            TensorLost: It cannot; the message says why.
        """
        location = _in_slab(ref)
        if location.host != self._host:
            raise lost(ref, f"it is on host {location.host}, this is {self._host}")
        self._mapping_of(ref)

    def read(self, ref: TensorRef) -> memoryview:
        """The bytes of a tensor: a view of the producer's memory, valid until the lease ends.

        The stamp is looked at before and after the sample: whoever fills the place anew takes the
        stamp away first.

        Raises:
            TensorLost: Lease or producer are gone, or the bytes are not those that were published.
        """
        location = _in_slab(ref)
        memory, offset = self._mapping_of(ref).memory, location.offset
        first = HEADER_BYTES + STAMP_BYTES
        if offset < first or ref.length < 0 or offset + ref.length > len(memory):
            raise lost(
                ref,
                f"bytes {offset} to {offset + ref.length} are outside segment"
                f" {location.segment}, which has its tensors from {first} to {len(memory)}",
            )
        data = memory[offset : offset + ref.length]
        check_stamp(ref, read_stamp(memory, offset))
        check_sample(ref, data)
        check_stamp(ref, read_stamp(memory, offset))
        return data

    def forget(self, incarnation: Incarnation) -> None:
        """Lets go of a producer's segment; views of it stay valid. Idempotent."""
        for name in [n for n, m in self._mappings.items() if m.incarnation == incarnation]:
            del self._mappings[name]

    def close(self) -> None:
        """Lets go of every segment; views of them stay valid. Idempotent."""
        self._mappings.clear()

    def _mapping_of(self, ref: TensorRef) -> _Mapping:
        name = _in_slab(ref).segment
        mapping = self._mappings.get(name) or self._mapped_now(name)
        owner = read_header(mapping.memory)
        if owner != ref.incarnation:
            self._mappings.pop(name, None)
            raise lost(
                ref, f"segment {name} belongs to {owner or 'nobody'} now: the producer is gone"
            )
        return mapping

    def _mapped_now(self, name: str) -> _Mapping:
        if not is_segment_name(name):
            raise TensorLost(f"{name!r} is not the name of a shared memory segment")
        self._sweep()
        path = self._directory / name
        try:
            memory = _map(path)
        except FileNotFoundError as error:
            raise TensorLost(
                f"segment {path} does not exist: its producer is gone, or has another folder there"
            ) from error
        except OSError as error:
            raise TensorLost(f"segment {path} cannot be read ({error.strerror})") from error
        incarnation = read_header(memory)
        if incarnation is None:
            raise TensorLost(f"{path} is not a segment of this version, or its producer is gone")
        mapping = _Mapping(incarnation=incarnation, memory=memory)
        self._mappings[name] = mapping
        return mapping

    def _sweep(self) -> None:
        for name in [n for n in self._mappings if not (self._directory / n).exists()]:
            del self._mappings[name]


def _in_slab(ref: TensorRef) -> SharedMemoryLocation:
    """Where in a slab a tensor is.

    Raises:
        TensorLost: It is in none.
    """
    if isinstance(ref.location, SharedMemoryLocation):
        return ref.location
    raise lost(ref, "it is on a device, which nobody can map")


def _map(path: Path) -> memoryview:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size < HEADER_BYTES:
            return memoryview(b"")
        return memoryview(mmap.mmap(descriptor, found.st_size, access=mmap.ACCESS_READ))
    finally:
        os.close(descriptor)
