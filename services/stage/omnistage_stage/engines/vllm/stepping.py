"""The one thread that owns and steps an engine core, seen from asyncio.

Everything foreign happens in that thread: the core is made, stepped and closed there, so it needs
no locks. The event loop puts orders into its mailbox and hears back by at most one callback per
step, which carries the pieces of every request; with sixteen running requests that is one wake-up
instead of sixteen. An idle thread blocks on the mailbox and costs nothing.

If the core raises, the thread ends, every running request fails with `EngineFailed` and so does
every later one. Nothing here knows vLLM: any core with these four methods will do.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from msgspec import Struct

from omnistage_common.errors import EngineFailed, OmnistageError, SetupError, truncated
from omnistage_stage.engines.protocol import FinishReason

__all__ = ["Core", "Finish", "Piece", "StepLoop"]

O_contra = TypeVar("O_contra", contravariant=True)
O = TypeVar("O")  # noqa: E741
P = TypeVar("P")


class Finish(Struct, frozen=True, kw_only=True):
    """How a request ended well."""

    reason: FinishReason
    input_tokens: int
    output_tokens: int


class Piece(Struct, Generic[P], frozen=True, kw_only=True):
    """What one step made for one request."""

    ticket: int
    content: P | None = None
    end: Finish | OmnistageError | None = None
    """None: there is more to come."""


class Core(Protocol[O_contra, P]):
    """What is stepped. Every method is called by the step loop's thread only."""

    def add(self, ticket: int, order: O_contra) -> OmnistageError | None:
        """Takes a request in; returns why it cannot."""

    def abort(self, tickets: Sequence[int]) -> None:
        """Drops requests; those that it no longer has are no mistake."""

    def step(self) -> list[Piece[P]]:
        """Computes one step of all requests."""

    @property
    def active(self) -> int:
        """Requests held. Also read by other threads."""

    def close(self) -> None:
        """Lets go of everything."""


class _Add(Struct, Generic[O], frozen=True):
    ticket: int
    order: O


class _Abort(Struct, frozen=True):
    ticket: int
    dropped: asyncio.Future[None]


class _Stop(Struct, frozen=True):
    pass


class _Running(Struct, Generic[P], frozen=True):
    emit: Callable[[P], None]
    end: asyncio.Future[Finish]


class StepLoop(Generic[O, P]):
    """A core, its thread and the requests in it. Used from one event loop."""

    def __init__(self, make_core: Callable[[], Core[O, P]], *, name: str) -> None:
        self._make_core = make_core
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._mailbox: queue.SimpleQueue[_Add[O] | _Abort | _Stop] = queue.SimpleQueue()
        self._core: Core[O, P] | None = None
        self._running: dict[int, _Running[P]] = {}
        self._dropping: set[asyncio.Future[None]] = set()
        self._tickets = 0
        self._failure: BaseException | None = None

    @property
    def active(self) -> int:
        """Requests that the core holds."""
        return 0 if self._core is None else self._core.active

    async def start(self) -> None:
        """Makes the core in the thread; returns when it can take requests.

        Raises:
            OmnistageError: What making it raised.
            SetupError: The same, where a foreign runtime raised it.
        """
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._thread.start()
        # Shielded: the thread finishes what it began, whoever gives up waiting.
        await asyncio.shield(self._started)

    async def run(self, order: O, emit: Callable[[P], None]) -> Finish:
        """Runs one request. When cancelled, returns after the core has dropped it.

        Args:
            order: What the core's `add` takes.
            emit: Called on the event loop with what every step made for it.

        Raises:
            EngineFailed: The core failed, now or earlier.
            OmnistageError: What the core says about this request.
        """
        if self._ended.is_set():
            raise self._failed()
        self._tickets += 1
        ticket = self._tickets
        end: asyncio.Future[Finish] = self._loop.create_future()
        self._running[ticket] = _Running(emit, end)
        self._mailbox.put(_Add(ticket, order))
        try:
            return await end
        except asyncio.CancelledError:
            await self._abort(ticket)
            raise
        finally:
            self._running.pop(ticket, None)

    async def stop(self) -> None:
        """Closes the core and ends the thread; running requests fail."""
        if not self._thread.is_alive():
            return
        self._mailbox.put(_Stop())
        await self._ended.wait()
        self._thread.join()

    async def _abort(self, ticket: int) -> None:
        self._running.pop(ticket, None)
        if self._ended.is_set():
            return
        dropped: asyncio.Future[None] = self._loop.create_future()
        self._dropping.add(dropped)
        self._mailbox.put(_Abort(ticket, dropped))
        await dropped

    def _live(self) -> None:
        """The thread: from the core's making to its end, whatever ends it."""
        with _Reporting(self._tell, self._end):
            core = self._make_core()
            self._core = core
            self._tell(self._begin)
            try:
                while self._obey(core):
                    if core.active and (pieces := core.step()):
                        self._tell(self._deliver, pieces)
            finally:
                self._core = None
                core.close()

    def _obey(self, core: Core[O, P]) -> bool:
        """Carries out what is in the mailbox, waiting for something when the core is idle."""
        orders = [] if core.active else [self._mailbox.get()]
        while not self._mailbox.empty():
            orders.append(self._mailbox.get())
        aborted: list[_Abort] = []
        for order in orders:
            match order:
                case _Add(ticket=ticket, order=wanted):
                    if refusal := core.add(ticket, wanted):
                        self._tell(self._deliver, [Piece(ticket=ticket, end=refusal)])
                case _Abort():
                    aborted.append(order)
                case _Stop():
                    return False
        if aborted:
            core.abort([abort.ticket for abort in aborted])
            self._tell(self._settle, [abort.dropped for abort in aborted])
        return True

    def _tell(self, function: Callable[..., None], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    def _begin(self) -> None:
        self._started.set_result(None)

    def _deliver(self, pieces: list[Piece[P]]) -> None:
        for piece in pieces:
            running = self._running.get(piece.ticket)
            if running is None or running.end.done():
                continue
            if piece.content is not None:
                running.emit(piece.content)
            if isinstance(piece.end, Finish):
                running.end.set_result(piece.end)
            elif piece.end is not None:
                running.end.set_exception(piece.end)

    def _end(self, failure: BaseException | None) -> None:
        self._failure = failure
        self._ended.set()
        if not self._started.done() and failure is not None:
            self._started.set_exception(_setup_error(failure))
        for running in self._running.values():
            if not running.end.done():
                running.end.set_exception(self._failed())
        self._settle(list(self._dropping))

    def _settle(self, dropped: list[asyncio.Future[None]]) -> None:
        for future in dropped:
            self._dropping.discard(future)
            if not future.done():
                future.set_result(None)

    def _failed(self) -> EngineFailed:
        why = "it was stopped" if self._failure is None else truncated(repr(self._failure))
        error = EngineFailed(f"the engine has ended: {why}. The stage must be restarted")
        error.__cause__ = self._failure
        return error


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

    def __enter__(self) -> Self:
        return self

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
