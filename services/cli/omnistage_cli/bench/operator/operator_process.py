"""An operator process of the benchmark: started, listened to, measured, and ended.

What it does is heard from its log on standard error, which says when it has looked at everything, and
read from its figures.
"""

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
import psutil
from msgspec import Struct

from omnistage_cli.bench.operator.figures import Figures, Spent, figures_of
from omnistage_cli.runtime.ports import LOOPBACK, free_ports
from omnistage_common.errors import ServerError, truncated

__all__ = ["OperatorOrder", "OperatorProcess", "running_operator"]

_CONTROLLERS: Final = frozenset({"pipeline", "stage"})
_LOOKED: Final = "looked at everything"
_GRACE: Final = 20.0
"""Seconds that it may take to end: it gives its lease back."""
_LINE_BYTES: Final = 1024 * 1024
_LAST_WORDS: Final = 5


class OperatorOrder(Struct, frozen=True, kw_only=True):
    """Which cluster and which part of it."""

    namespace: str
    """Its own."""
    watched: tuple[str, ...]
    """All that it looks at."""
    kubeconfig: Path | None = None
    context: str | None = None

    def arguments(self, port: int) -> tuple[str, ...]:
        """The command line of the process; its figures are served on this port."""
        return (
            *(("--kubeconfig", str(self.kubeconfig)) if self.kubeconfig else ()),
            *(("--context", self.context) if self.context else ()),
            *("--namespace", self.namespace, "--watch-namespaces", ",".join(self.watched)),
            *("--stage-image", "simulated", "--metrics", f"{LOOPBACK}:{port}"),
        )


class _Line(Struct, frozen=True):
    """A line of the log, as far as it is understood."""

    event: str = ""
    level: str = ""
    controller: str = ""
    error: str = ""


class OperatorProcess:
    """One process; made by `running_operator`."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self._port = port
        self._usage = psutil.Process(process.pid)
        self._looked: set[str] = set()
        self._words: deque[str] = deque(maxlen=_LAST_WORDS)
        self._ending = False
        self.looked_at_everything = asyncio.Event()
        """Set when each controller has looked at every object that was there at its start."""

    async def listen(self) -> None:
        """Follows the log until the process ends.

        Raises:
            ServerError: It ended without being asked to; with its last words.
        """
        output = self._process.stderr
        while output is not None and (line := await output.readline()):
            self._hear(line)
        await self._process.wait()
        if not self._ending:
            raise ServerError(f"the operator ended: {self.last_words or 'without a word'}")

    @property
    def last_words(self) -> str:
        """The latest complaints in its log."""
        return truncated("; ".join(self._words))

    def spent(self) -> Spent:
        """Memory now, and CPU time since its start."""
        with self._usage.oneshot():
            times = self._usage.cpu_times()
            return Spent(
                rss_bytes=self._usage.memory_info().rss, cpu_seconds=times.user + times.system
            )

    async def figures(self) -> Figures:
        """What it has counted.

        Raises:
            ServerError: It does not say.
        """
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://{LOOPBACK}:{self._port}/metrics") as answer,
            ):
                return figures_of(await answer.text())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ServerError(f"the operator does not tell its figures: {error}") from error

    async def end(self) -> None:
        """Asks it to end, and makes it. Idempotent."""
        self._ending = True
        if self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE):
                    await self._process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def _hear(self, line: bytes) -> None:
        try:
            heard = msgspec.json.decode(line, type=_Line)
        except msgspec.MsgspecError:
            self._words.append(line.decode(errors="replace").strip())
            return
        if heard.level not in {"", "debug", "info"}:
            self._words.append(": ".join(filter(None, (heard.event, heard.error))))
        if heard.event == _LOOKED:
            self._looked.add(heard.controller)
            if self._looked >= _CONTROLLERS:
                self.looked_at_everything.set()


@asynccontextmanager
async def running_operator(order: OperatorOrder) -> AsyncIterator[OperatorProcess]:
    """A process that works while the context lasts.

    Raises:
        ServerError: In a group: it ended before it was asked to.
    """
    (port,) = free_ports(1)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "omnistage_operator", *order.arguments(port)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES,
        start_new_session=True,
    )
    operator = OperatorProcess(process, port)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(operator.listen(), name="operator's log")
        try:
            yield operator
        finally:
            await operator.end()
