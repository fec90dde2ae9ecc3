"""Where the processes of a gang meet, and how each learns that another is gone.

Each follower holds one connection to the leader for as long as it lives, so each side learns at once
that the other is gone. Nothing else travels here. The leader's name may come into DNS, and its
process to its port, after a follower's; no event tells of either, so both are tried again.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

import structlog

from omnistage_common.errors import EngineFailed, SetupError
from omnistage_stage.engines.protocol import Gang

__all__ = ["Meeting", "attend", "resolved"]

_log = structlog.get_logger()

T = TypeVar("T")

PORT: Final = 29_600
PATIENCE_S: Final = 600.0
"""For all to come: an image may have to be pulled on another node."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_NUMBER_BYTES: Final = 2


async def resolved(host: str, *, patience_s: float = PATIENCE_S) -> str:
    """The address of a host, once its name is known.

    Raises:
        SetupError: It does not become known.
    """
    try:
        async with asyncio.timeout(patience_s):
            async for _ in _attempts():
                with suppress(socket.gaierror):
                    found = await asyncio.get_running_loop().getaddrinfo(
                        host, None, type=socket.SOCK_STREAM
                    )
                    return str(found[0][4][0])
    except TimeoutError:
        pass
    raise SetupError(
        f"the leader {host} has no address after {patience_s:.0f} s; does its pod run?",
        field="--gang-leader",
    )


async def attend(gang: Gang, *, port: int = PORT, patience_s: float = PATIENCE_S) -> None:
    """Comes to the leader's meeting and stays until the leader is gone.

    Args:
        gang: Whom to follow, and as which.
        port: Of the meeting.
        patience_s: Until the leader listens.

    Raises:
        SetupError: It cannot be reached.
    """
    reader, writer = await _reached(gang.leader, port, patience_s)
    try:
        writer.write(gang.rank.to_bytes(_NUMBER_BYTES))
        await writer.drain()
        _log.info("came to the gang", leader=gang.leader, rank=gang.rank)
        await reader.read()
    except ConnectionError:
        _log.info("the leader is gone", leader=gang.leader)
    finally:
        writer.close()


class Meeting:
    """The leader's side; made by `open`, ended by `close`."""

    def __init__(self, size: int) -> None:
        """Waits for nobody yet.

        Args:
            size: Of the gang, the leader included.
        """
        self._size = size
        self._members: dict[int, asyncio.StreamWriter] = {}
        self._complete = asyncio.Event()
        self._broken = asyncio.Event()
        self._server: asyncio.Server | None = None

    @property
    def missing(self) -> list[int]:
        """Ranks of those who are not here."""
        return [rank for rank in range(1, self._size) if rank not in self._members]

    async def open(self, address: str, *, port: int = PORT, patience_s: float = PATIENCE_S) -> None:
        """Listens, and returns when every member has come.

        Raises:
            SetupError: Somebody does not come, or the address cannot be listened on.
        """
        try:
            self._server = await asyncio.start_server(self._greet, address, port)
        except OSError as taken:
            raise SetupError(
                f"the gang cannot meet at {address}:{port}: {taken.strerror}", field="--gang-leader"
            ) from taken
        try:
            async with asyncio.timeout(patience_s):
                await self._complete.wait()
        except TimeoutError as late:
            ranks = ", ".join(map(str, self.missing))
            raise SetupError(
                f"members {ranks} of the gang have not come after {patience_s:.0f} s; do their pods run?",
                field="--gang-leader",
            ) from late

    @property
    def broken(self) -> bool:
        """Whether somebody has gone who had come."""
        return self._broken.is_set()

    def check(self) -> None:
        """Raises EngineFailed when somebody has gone."""
        if self.broken:
            ranks = ", ".join(map(str, self.missing))
            raise EngineFailed(f"members {ranks} of the gang are lost")

    async def needing_all(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work that needs every member.

        Raises:
            EngineFailed: Somebody has gone. The work is cancelled then and not waited for: what computes
                in a gang that is not whole may never return.
        """
        working = asyncio.ensure_future(work)
        breaking = asyncio.create_task(self._broken.wait(), name="gang")
        try:
            await asyncio.wait((working, breaking), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            working.cancel()
            await asyncio.wait((working, breaking), return_when=asyncio.FIRST_COMPLETED)
            raise
        finally:
            breaking.cancel()
            if not working.done():
                working.cancel()
                working.add_done_callback(_looked_at)
        self.check()
        return await working

    async def close(self) -> None:
        """Sends everybody home."""
        if self._server is None:
            return
        self._server.close()
        for writer in tuple(self._members.values()):
            writer.close()
        await self._server.wait_closed()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rank = 0
        try:
            rank = int.from_bytes(await reader.readexactly(_NUMBER_BYTES))
            if rank not in self.missing:
                _log.warning("a stranger came to the gang", rank=rank, size=self._size)
                rank = 0
                return
            self._members[rank] = writer
            if not self.missing:
                self._complete.set()
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            _log.debug("a connection ended", rank=rank)
        finally:
            writer.close()
            if self._members.pop(rank, None) is not None:
                self._broken.set()


def _looked_at(work: "asyncio.Future[Any]") -> None:
    """Keeps asyncio from reporting a failure that nobody waits for any more."""
    if not work.cancelled():
        work.exception()


async def _reached(
    leader: str, port: int, patience_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(patience_s):
            async for _ in _attempts():
                with suppress(OSError):
                    return await asyncio.open_connection(leader, port)
    except TimeoutError:
        pass
    raise SetupError(
        f"the leader {leader}:{port} is not reached after {patience_s:.0f} s; does its pod run?",
        field="--gang-leader",
    )


async def _attempts() -> AsyncIterator[None]:
    pause = _FIRST_PAUSE_S
    while True:
        yield
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE_S)
