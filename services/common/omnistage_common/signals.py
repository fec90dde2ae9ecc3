"""Stop signals of a server: the first asks it to drain, the second ends it at once.

A process whose parent has died is not ended by a second signal: the kernel tells it of the death once
for each thread that the parent had, and it still has to take its shared memory with it.
"""

import asyncio
import os
import signal
from types import TracebackType
from typing import Final, Self

__all__ = ["FORCED_EXIT", "StopSignals"]

FORCED_EXIT: Final = 130
"""Exit status after a second signal."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Within this context SIGTERM and SIGINT are events of the running loop."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        self._parent = os.getppid()

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._received)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    def _received(self) -> None:
        if self._stop.is_set() and os.getppid() == self._parent:
            os._exit(FORCED_EXIT)
        self._stop.set()

    async def wait(self) -> None:
        """Returns after the first signal."""
        await self._stop.wait()
