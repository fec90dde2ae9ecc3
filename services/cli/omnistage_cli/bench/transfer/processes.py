"""The two processes of the benchmark: started, heard line by line, ended, and nothing of them left.

Each leads a session of its own, so that Ctrl-C reaches the command only, which ends them in order. One
that is killed leaves its shared memory behind, which is removed here; one whose parent is killed is told
by the kernel, and cleans up by itself.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from tempfile import TemporaryFile
from typing import IO, Final

import msgspec
from msgspec import Struct

from omnistage_common.errors import ServerError, truncated
from omnistage_common.processes import PARENT_VARIABLE
from omnistage_common.tensors import SHARED_MEMORY_FOLDER

__all__ = ["Child", "child_of"]

_GRACE: Final = 10.0
"""Seconds that a process may take to end; the transfer engine takes up to one."""
_LINE_BYTES: Final = 1024 * 1024


class Child:
    """A process that has its order and prints lines."""

    def __init__(self, process: asyncio.subprocess.Process, words: IO[bytes]) -> None:
        self._process = process
        self._words = words

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its group."""
        return self._process.pid

    async def lines(self) -> AsyncIterator[bytes]:
        """What it prints, line by line, until it has ended well.

        Raises:
            ServerError: It failed; with its last words.
        """
        output = self._process.stdout
        while output is not None and (line := await output.readline()):
            yield line
        if await self._process.wait():
            raise self._failed()

    async def line(self) -> bytes:
        """The next line.

        Raises:
            ServerError: It ended without one.
        """
        async for line in self.lines():
            return line
        raise self._failed()

    async def end(self) -> None:
        """Asks it to end, makes it, and removes what it left. Idempotent."""
        try:
            if self._process.returncode is None:
                self._process.terminate()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), _GRACE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            await self._process.wait()
            for segment in SHARED_MEMORY_FOLDER.glob(f"omnistage-{self.pid}-*"):
                segment.unlink(missing_ok=True)

    def _failed(self) -> ServerError:
        self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        last = truncated(lines[-1]) if lines else "without a word"
        return ServerError(f"the measuring process failed: {last}")


@asynccontextmanager
async def child_of(module: str, order: Struct) -> AsyncIterator[Child]:
    """A module, run with an order as JSON on its standard input; ended with the context.

    Args:
        module: Dotted name.
        order: What it reads.
    """
    with TemporaryFile() as words:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=words,
            limit=_LINE_BYTES,
            env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
            start_new_session=True,
        )
        child = Child(process, words)
        try:
            if process.stdin is not None:
                process.stdin.write(msgspec.json.encode(order))
                process.stdin.close()
            yield child
        finally:
            await child.end()
