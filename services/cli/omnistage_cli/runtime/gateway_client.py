"""What the local runtime asks the gateway: whether it can serve.

HTTP has no watch, so this is the one thing that is asked again, and only until the first yes: from
then on the end of the process is what tells. Asked over a plain connection, because one status line
does not need an HTTP library.
"""

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Final

from omnistage_common.addresses import Address

__all__ = ["GatewayClient"]

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 0.5
_TIMEOUT: Final = 2.0
_LONGEST_LINE: Final = 4096


class GatewayClient:
    """Asks a gateway whether it is ready."""

    def __init__(self, address: Address) -> None:
        self._address = address

    async def serving(self) -> AsyncIterator[bool]:
        """False whenever it answers that it cannot serve, then True, once."""
        pause = _FIRST_PAUSE
        while True:
            try:
                status = await self._ready_status()
            except (OSError, TimeoutError, ValueError):
                status = 0
            if status == HTTPStatus.OK:
                break
            if status:
                yield False
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        yield True

    async def _ready_status(self) -> int:
        """The status of `GET /readyz`.

        Raises:
            OSError: Nobody answers.
            TimeoutError: The answer takes too long.
            ValueError: The answer is not HTTP.
        """
        async with asyncio.timeout(_TIMEOUT):
            reader, writer = await asyncio.open_connection(
                self._address.host, self._address.port, limit=_LONGEST_LINE
            )
            try:
                writer.write(
                    b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                line = await reader.readline()
                await reader.read()
            finally:
                writer.close()
                await writer.wait_closed()
        version, _, rest = line.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            raise ValueError("not an HTTP answer")
        return int(rest[:3])
