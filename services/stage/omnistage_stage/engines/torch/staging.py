"""Host buffers on the way from a device to the tensor plane.

A copy from a GPU is fast and asynchronous only into page-locked memory, and locking pages is slow:
so buffers are made once, kept, and lent. The pool is bounded; whoever finds it empty waits, which
holds back the producer instead of growing. Where there is no GPU the buffers are ordinary memory and
the path is the same, so that every test runs it.

Used by one event loop: `lend` is called there, the buffer is filled in the compute thread, put, and
given back when the `put` has returned.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import torch

__all__ = ["HostBuffer", "StagingPool"]


class HostBuffer:
    """One lent piece of host memory."""

    def __init__(self, size: int, *, pinned: bool) -> None:
        self._octets = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)

    @property
    def size(self) -> int:
        """Bytes."""
        return int(self._octets.numel())

    @property
    def pinned(self) -> bool:
        """Whether its pages are locked."""
        return bool(self._octets.is_pinned())

    def hold(self, values: Any) -> Any:
        """Copies a device tensor into the buffer and waits until it is there.

        Args:
            values: A tensor of at most `size` bytes, on any device.

        Returns:
            A CPU tensor over the buffer, valid until it is given back.
        """
        size = values.numel() * values.element_size()
        held = self._octets[:size].view(values.dtype).view(values.shape)
        held.copy_(values, non_blocking=True)
        if values.is_cuda:
            torch.cuda.current_stream(values.device).synchronize()
        return held


class StagingPool:
    """A bounded number of equal host buffers, made when first needed."""

    def __init__(self, *, count: int, size: int, pinned: bool) -> None:
        self._size = size
        self._pinned = pinned
        self._room = asyncio.Semaphore(count)
        self._idle: list[HostBuffer] = []
        self._made = 0
        self._lent = 0

    @property
    def lent(self) -> int:
        """Buffers that somebody has."""
        return self._lent

    @property
    def made(self) -> int:
        """Buffers that exist."""
        return self._made

    @property
    def size(self) -> int:
        """Bytes of each."""
        return self._size

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[HostBuffer]:
        """A buffer for the length of a `with` block; waits until one is free."""
        async with self._room:
            buffer = self._idle.pop() if self._idle else self._make()
            self._lent += 1
            try:
                yield buffer
            finally:
                self._lent -= 1
                self._idle.append(buffer)

    def _make(self) -> HostBuffer:
        buffer = HostBuffer(self._size, pinned=self._pinned)
        self._made += 1
        return buffer
