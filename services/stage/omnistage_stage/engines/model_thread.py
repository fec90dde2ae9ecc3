"""A thread that owns a model from its making to its end, seen from asyncio.

Everything foreign happens in that thread, so it needs no locks. The event loop puts messages into its
mailbox and hears back by callbacks; an idle thread blocks on the mailbox and costs nothing. Whatever
ends the thread is told to the event loop: nobody is left waiting, and a model in an unknown state is
not used again.

What the messages are, and what is done with them, is its user's: see the step loops of the engines.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic, TypeVar

from omnistage_common.errors import EngineFailed, OmnistageError, SetupError, truncated

__all__ = ["ModelThread"]

M = TypeVar("M")


class ModelThread(Generic[M]):
    """One such thread, with a mailbox for messages of a type. Used from one event loop.

    Args:
        live: The thread's life: makes the model, says `begun`, and obeys what it can `take` until it
            is told to stop.
        at_end: Called on the event loop when that life is over; fails those that still wait, with
            what `failed` gives.
        name: The thread's.
    """

    def __init__(self, live: Callable[[], None], *, at_end: Callable[[], None], name: str) -> None:
        self._live = live
        self._at_end = at_end
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._mailbox: queue.SimpleQueue[M] = queue.SimpleQueue()
        self._releases: set[asyncio.Future[None]] = set()
        self._failure: BaseException | None = None

    async def start(self) -> None:
        """Starts the thread; returns when it says that it has begun.

        Raises:
            OmnistageError: What its life raised before that.
            SetupError: The same, where a foreign runtime raised it.
        """
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._thread.start()
        # Shielded: the thread finishes what it began, whoever gives up waiting.
        await asyncio.shield(self._started)

    async def stop(self, message: M) -> None:
        """Tells the thread to stop, by this message, and waits for its end."""
        if not self._thread.is_alive():
            return
        self._mailbox.put(message)
        await self._ended.wait()
        self._thread.join()

    @property
    def ended(self) -> bool:
        """Whether its life is over, as far as the event loop knows."""
        return self._ended.is_set()

    def failed(self) -> EngineFailed:
        """Why nothing can be asked of it any more."""
        why = "it was stopped" if self._failure is None else truncated(repr(self._failure))
        error = EngineFailed(f"the engine has ended: {why}. The stage must be restarted")
        error.__cause__ = self._failure
        return error

    def put(self, message: M) -> None:
        """Puts a message into the mailbox."""
        self._mailbox.put(message)

    async def release(self, message: Callable[[asyncio.Future[None]], M]) -> None:
        """Asks the thread to let go of something; returns when it has, or has ended.

        Args:
            message: Makes the message, around what the thread hands to `released`.
        """
        if self._ended.is_set():
            return
        release: asyncio.Future[None] = self._loop.create_future()
        self._releases.add(release)
        self._mailbox.put(message(release))
        await release

    def begun(self) -> None:
        """In the thread: the model is made, messages are obeyed from now on."""
        self.tell(self._begin)

    def take(self, *, wait: bool) -> list[M]:
        """In the thread: empties the mailbox.

        Args:
            wait: Whether to wait for a message where there is none.
        """
        messages = [self._mailbox.get()] if wait else []
        while not self._mailbox.empty():
            messages.append(self._mailbox.get())
        return messages

    def tell(self, function: Callable[..., None], *arguments: object) -> None:
        """In the thread: has a function called on the event loop."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def released(self, releases: Sequence[asyncio.Future[None]]) -> None:
        """In the thread: what these asked for has been let go of."""
        self.tell(self._settle, releases)

    def _run(self) -> None:
        with _Reporting(self.tell, self._end):
            self._live()

    def _begin(self) -> None:
        self._started.set_result(None)

    def _end(self, failure: BaseException | None) -> None:
        self._failure = failure
        self._ended.set()
        if not self._started.done() and failure is not None:
            self._started.set_exception(_setup_error(failure))
        self._at_end()
        self._settle(list(self._releases))

    def _settle(self, releases: Sequence[asyncio.Future[None]]) -> None:
        for release in releases:
            self._releases.discard(release)
            if not release.done():
                release.set_result(None)


class _Reporting:
    """Hands whatever ends the thread over to the event loop.

    An uncaught exception in a thread would otherwise leave every request waiting.
    """

    def __init__(
        self,
        tell: Callable[..., None],
        end: Callable[[BaseException | None], None],
    ) -> None:
        self._tell = tell
        self._end = end

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._tell(self._end, error)
        return True


def _setup_error(failure: BaseException) -> OmnistageError:
    if isinstance(failure, OmnistageError):
        return failure
    kind = type(failure).__name__
    error = SetupError(f"the engine cannot be loaded: {kind}: {truncated(str(failure))}")
    error.__cause__ = failure
    return error
