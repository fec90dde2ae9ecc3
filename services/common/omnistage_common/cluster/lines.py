"""A watch as lines: the API server writes one JSON object a line, in chunks that end anywhere."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

from omnistage_common.cluster.errors import ApiUnavailable

__all__ = ["MAX_LINE_BYTES", "lines_of"]

MAX_LINE_BYTES: Final = 16 * 2**20
"""No object is near it (etcd stops at 1.5 MB); a server that goes beyond is not one."""


async def lines_of(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The complete lines, empty ones left out; an unfinished last one is dropped.

    Raises:
        ApiUnavailable: A line is longer than anything a server sends.
    """
    rest = bytearray()
    async for chunk in chunks:
        rest += chunk
        if b"\n" in chunk:
            *lines, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in lines:
                if line.strip():
                    yield line
        if len(rest) > MAX_LINE_BYTES:
            raise ApiUnavailable(f"the watch sent a line of more than {MAX_LINE_BYTES} bytes")
