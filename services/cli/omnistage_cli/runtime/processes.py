"""One child process: started, heard, stopped, and nothing of it left.

A child leads a session and process group of its own, so that Ctrl-C in the terminal reaches only
us (we decide the order in which things end) and so that whatever a child started can be ended with
it. What it writes goes to a file. A child that was killed leaves its shared memory behind; its
segments carry its process id and are removed here.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from omnistage_cli.runtime.directory import last_lines
from omnistage_common.processes import PARENT_VARIABLE
from omnistage_common.tensors import SHARED_MEMORY_FOLDER

__all__ = ["Command", "Process", "start"]


class Command(Struct, frozen=True, kw_only=True):
    """What to execute."""

    arguments: tuple[str, ...]
    """The program and its arguments."""
    environment: Mapping[str, str]
    """Added to our own."""
    log: Path
    """Where both output streams go, appended."""


class Process:
    """A running child."""

    def __init__(self, child: asyncio.subprocess.Process, log: Path, log_start: int) -> None:
        self._child = child
        self._log = log
        self._log_start = log_start

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its group."""
        return self._child.pid

    async def wait(self) -> int:
        """Waits until it and all that it started are gone, and tidies up after it.

        Cancelled, it kills them first.

        Returns:
            The exit code; minus the signal number when a signal ended it.
        """
        try:
            return await self._child.wait()
        finally:
            self.kill()
            if self._child.returncode is None:
                await self._child.wait()
            self._remove_shared_memory()

    def terminate(self) -> None:
        """Asks it to drain and exit."""
        with contextlib.suppress(ProcessLookupError):
            self._child.terminate()

    def kill(self) -> None:
        """Ends its whole group at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def last_lines(self) -> tuple[str, ...]:
        """The last lines it wrote, without those of processes before it."""
        return last_lines(self._log, start=self._log_start)

    def _remove_shared_memory(self) -> None:
        for segment in SHARED_MEMORY_FOLDER.glob(f"omnistage-{self._child.pid}-*"):
            segment.unlink(missing_ok=True)


async def start(command: Command) -> Process:
    """Starts a command.

    Raises:
        OSError: It cannot be executed; its log says so, too.
    """
    environment = {**os.environ, **command.environment, PARENT_VARIABLE: str(os.getpid())}
    with command.log.open("ab") as log:
        log_start = log.tell()
        try:
            child = await asyncio.create_subprocess_exec(
                *command.arguments,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            log.write(f"cannot start {command.arguments[0]}: {error.strerror}\n".encode())
            raise
    return Process(child, command.log, log_start)
