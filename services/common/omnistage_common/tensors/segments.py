"""The shared memory segment of a process: its file, its layout, and who may remove it.

A process has at most one segment, named `omnistage-<pid>-<random>`. It starts with a header page
that says whose it is; blocks follow, each a stamp (lease, length, checksum, token) of one cache line
and then the bytes of a tensor. The stamp is written last and cleared first: a block without one is
free or being filled, so a reference that outlived its lease is recognised whatever became of the
bytes, and so is a segment of another life.

    0         4096         4096+offset     +64
    │ header … │ … blocks … │ stamp         │ bytes …

The owner holds a lock on the file for as long as it lives, and the kernel drops it however the
process ends. That lock, and not the process id in the name, tells a live segment from a stale one:
ids are reused, and containers that share a folder do not share ids (each may be process 1).

Memory is taken from the system as the slab is first used, in steps, before it is written to: a
folder that is full is an error with a remedy and not a SIGBUS.
"""

import ctypes
import fcntl
import mmap
import os
import re
import secrets
from pathlib import Path
from struct import Struct as Layout
from typing import Final

from msgspec import Struct

from omnistage_common.errors import SetupError
from omnistage_common.ids import Incarnation, LeaseId, TensorToken

__all__ = [
    "HEADER_BYTES",
    "SHARED_MEMORY_FOLDER",
    "STAMP_BYTES",
    "SharedSlab",
    "Stamp",
    "is_segment_name",
    "read_header",
    "read_stamp",
    "remove_stale",
]

SHARED_MEMORY_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - what POSIX shared memory is on Linux
HEADER_BYTES: Final = 4096
"""One page, so that blocks are aligned in memory as they are in the slab."""
STAMP_BYTES: Final = 64
"""In front of every tensor; one cache line."""

_MAGIC: Final = b"OMNISTAG"
_VERSION: Final = 2
_MAX_INCARNATION: Final = 63
_HEADER: Final = Layout(f"<8sI{1 + _MAX_INCARNATION}p")
_STAMP: Final = Layout("<QQQ33p")
_NAME: Final = re.compile(r"omnistage-[0-9]{1,10}-[0-9a-f]{16}")
_BACKING_STEP: Final = 2 * 1024 * 1024


class Stamp(Struct, frozen=True, kw_only=True):
    """What stands in front of a tensor."""

    lease: LeaseId
    """0 where there is none."""
    length: int = 0
    """Bytes."""
    checksum: int = 0
    token: TensorToken = TensorToken("")

    def pack_into(self, memory: memoryview | bytearray, offset: int) -> None:
        """Writes it at an offset of a region."""
        token = self.token.encode()
        _STAMP.pack_into(memory, offset, self.lease, self.length, self.checksum, token)

    def packed(self) -> bytes:
        """Its bytes, `STAMP_BYTES` of them, for memory that is written to otherwise."""
        octets = bytearray(STAMP_BYTES)
        self.pack_into(octets, 0)
        return bytes(octets)


def is_segment_name(name: str) -> bool:
    """Whether this is the name of a segment, and therefore not a path to somewhere else."""
    return _NAME.fullmatch(name) is not None


def read_header(memory: memoryview) -> Incarnation | None:
    """Whose segment this is; None when it is nobody's (any more)."""
    if len(memory) < HEADER_BYTES:
        return None
    magic, version, incarnation = _HEADER.unpack_from(memory)
    if magic != _MAGIC or version != _VERSION:
        return None
    return Incarnation(incarnation.decode("utf-8", "replace"))


def read_stamp(memory: memoryview, offset: int) -> Stamp:
    """The stamp of the tensor whose bytes begin at this offset of a region."""
    lease, length, checksum, token = _STAMP.unpack_from(memory, offset - STAMP_BYTES)
    return Stamp(
        lease=LeaseId(lease),
        length=length,
        checksum=checksum,
        token=TensorToken(token.decode("ascii", "replace")),
    )


def remove_stale(directory: Path = SHARED_MEMORY_FOLDER) -> tuple[str, ...]:
    """Unlinks the segments whose processes are gone; the names of those it removed.

    Safe at any time, beside live processes and other sweeps.
    """
    with os.scandir(directory) as entries:
        names = sorted(
            entry.name
            for entry in entries
            if is_segment_name(entry.name) and entry.is_file(follow_symlinks=False)
        )
    return tuple(name for name in names if _removed(directory / name))


def _removed(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except (BlockingIOError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True


class SharedSlab:
    """The producer's end of a segment: the memory of its tensors.

    Block offsets are those of an `Allocator` over `slab_bytes`.

    Args:
        directory: Folder on a memory file system.
        incarnation: Written into the header; at most 63 bytes.
        slab_bytes: Bytes for blocks.

    Raises:
        SetupError: The folder does not take the segment.
    """

    def __init__(self, *, directory: Path, incarnation: Incarnation, slab_bytes: int) -> None:
        if len(incarnation.encode()) > _MAX_INCARNATION:
            raise ValueError(f"an incarnation has at most {_MAX_INCARNATION} bytes: {incarnation}")
        size = HEADER_BYTES + slab_bytes
        try:
            self._path, self._descriptor = _create(directory)
        except OSError as error:
            raise SetupError(
                f"cannot make a shared memory segment in {directory} ({error.strerror}): the"
                " folder must exist and be writable"
            ) from error
        self._backed = 0
        self.size = size
        """Bytes, with the header."""
        try:
            os.ftruncate(self._descriptor, size)
            self._back(HEADER_BYTES)
            self._map = mmap.mmap(self._descriptor, size)
        except OSError as error:
            self._unlink()
            raise _no_room(directory, size, error) from error
        except SetupError:
            self._unlink()
            raise
        self._memory = memoryview(self._map)
        _HEADER.pack_into(self._map, 0, _MAGIC, _VERSION, incarnation.encode())
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        """Of the first byte in this process; what device drivers and transfer engines want."""

    @property
    def name(self) -> str:
        """Of the segment within its folder."""
        return self._path.name

    def position(self, block: int) -> int:
        """Where the bytes of the tensor in a block begin, from the start of the segment."""
        return HEADER_BYTES + block + STAMP_BYTES

    def write(self, block: int, at: int, piece: memoryview) -> None:
        """Copies a piece of a tensor into its block.

        Args:
            block: Offset of the block.
            at: Bytes of the tensor before this piece.
            piece: One dimension of bytes.

        Raises:
            SetupError: The folder is full.
        """
        start = self.position(block) + at
        end = start + len(piece)
        if end > self._backed:
            self._back(end)
        self._memory[start:end] = piece

    def writable(self, block: int, length: int) -> memoryview:
        """The bytes of the tensor in a block, to be written to.

        Raises:
            SetupError: The folder is full.
        """
        start = self.position(block)
        if start + length > self._backed:
            self._back(start + length)
        return self._memory[start : start + length]

    def stamp(self, block: int, stamp: Stamp) -> None:
        """Marks a block as holding the tensor of a lease, once its bytes are written."""
        stamp.pack_into(self._memory, HEADER_BYTES + block)

    def clear(self, block: int) -> None:
        """Marks a block as free."""
        if HEADER_BYTES + block < self._backed:
            Stamp(lease=LeaseId(0)).pack_into(self._memory, HEADER_BYTES + block)

    def claim_all(self) -> None:
        """Takes all the memory from the system now, for those who lock or pin it.

        Raises:
            SetupError: The folder is full.
        """
        if self._backed < self.size:
            self._back(self.size)

    def view(self, block: int, length: int) -> memoryview:
        """The bytes of the tensor in a block, read-only."""
        start = self.position(block)
        return self._memory[start : start + length].toreadonly()

    def close(self) -> None:
        """Unlinks the segment and tells those who have it mapped that it is nobody's any more.

        The memory itself goes when the last view of it, here or in a consumer, is gone.
        """
        self._map[: len(_MAGIC)] = bytes(len(_MAGIC))
        self._unlink()

    def _unlink(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _back(self, end: int) -> None:
        size = os.fstat(self._descriptor).st_size
        target = min(size, -(-end // _BACKING_STEP) * _BACKING_STEP)
        try:
            os.posix_fallocate(self._descriptor, self._backed, target - self._backed)
        except OSError as error:
            raise _no_room(self._path.parent, size, error) from error
        self._backed = target


def _create(directory: Path) -> tuple[Path, int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        path = directory / f"omnistage-{os.getpid()}-{secrets.token_hex(8)}"
        descriptor = os.open(path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        # A sweep took the file between its creation and its lock.
        os.close(descriptor)


def _no_room(directory: Path, size: int, error: OSError) -> SetupError:
    return SetupError(
        f"{directory} has no room for a shared memory segment of up to {size} bytes"
        f" ({error.strerror}): enlarge it (a pod's `emptyDir` with `medium: Memory`, a container's"
        " shared memory size) or lower `limits.slabBytes`"
    )
