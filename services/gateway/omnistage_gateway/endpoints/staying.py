"""How long an answer is wanted: until the deadline, or until the client goes away."""

import asyncio
from types import TracebackType
from typing import Final, Self

from starlette.types import Receive

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import DeadlineExceeded, RequestCancelled

__all__ = ["Stay"]

WATCH_AFTER: Final = 0.05
"""Seconds after which the client's connection is watched."""


class Stay:
    """The time for which an answer is wanted; it ends by one timer, whose expiry cancels what runs.

    The client is watched once its body has been read, as both come by the same way, and only from
    `WATCH_AFTER` on: a request that is over by then has nothing to gain from a watcher, which would
    cost it a task.

    Raises:
        DeadlineExceeded: The deadline passed.
        RequestCancelled: The client went away.
    """

    def __init__(self, receive: Receive, deadline: Deadline) -> None:
        self._receive = receive
        self._deadline = deadline
        self._timer = asyncio.timeout_at(deadline.monotonic)
        self._start: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._gone = False

    async def __aenter__(self) -> Self:
        await self._timer.__aenter__()
        return self

    def watch(self, *, until: Deadline) -> None:
        """Watches the client from now on, until another deadline than was thought."""
        if until != self._deadline:
            self._timer.reschedule(until.monotonic)
        loop = asyncio.get_running_loop()
        self._start = loop.call_later(WATCH_AFTER, self._start_watching)

    def _start_watching(self) -> None:
        self._watcher = asyncio.create_task(self._watch(), name="disconnect watch")

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._timer.reschedule(asyncio.get_running_loop().time())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._start is not None:
            self._start.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        try:
            await self._timer.__aexit__(kind, error, traceback)
        except TimeoutError:
            if self._gone:
                raise RequestCancelled("the client went away") from None
            raise DeadlineExceeded(
                "the request's deadline passed before its answer was complete"
            ) from None
