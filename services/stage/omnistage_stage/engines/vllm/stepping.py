"""The one thread that owns and steps an engine core, seen from asyncio.

Everything foreign happens in that thread: the core is made, stepped and closed there, so it needs
no locks. The event loop puts orders into its mailbox and hears back by at most one callback per
step, which carries the pieces of every request; with sixteen running requests that is one wake-up
instead of sixteen. An idle thread blocks on the mailbox and costs nothing.

If the core raises, the thread ends, every running request fails with `EngineFailed` and so does
every later one. Nothing here knows vLLM: any core with these four methods will do.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from omnistage_common.errors import OmnistageError
from omnistage_stage.engines.model_thread import ModelThread
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
        self._thread: ModelThread[_Add[O] | _Abort | _Stop] = ModelThread(
            self._live, at_end=self._fail, name=name
        )
        self._core: Core[O, P] | None = None
        self._running: dict[int, _Running[P]] = {}
        self._tickets = 0

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
        await self._thread.start()

    async def run(self, order: O, emit: Callable[[P], None]) -> Finish:
        """Runs one request. When cancelled, returns after the core has dropped it.

        Args:
            order: What the core's `add` takes.
            emit: Called on the event loop with what every step made for it.

        Raises:
            EngineFailed: The core failed, now or earlier.
            OmnistageError: What the core says about this request.
        """
        if self._thread.ended:
            raise self._thread.failed()
        self._tickets += 1
        ticket = self._tickets
        end: asyncio.Future[Finish] = asyncio.get_running_loop().create_future()
        self._running[ticket] = _Running(emit, end)
        self._thread.put(_Add(ticket, order))
        try:
            return await end
        except asyncio.CancelledError:
            await self._abort(ticket)
            raise
        finally:
            self._running.pop(ticket, None)

    async def stop(self) -> None:
        """Closes the core and ends the thread; running requests fail."""
        await self._thread.stop(_Stop())

    async def _abort(self, ticket: int) -> None:
        self._running.pop(ticket, None)
        await self._thread.release(partial(_Abort, ticket))

    def _live(self) -> None:
        """The life of the thread: from the core's making to its closing."""
        core = self._make_core()
        self._core = core
        self._thread.begun()
        try:
            while self._obey(core):
                if core.active and (pieces := core.step()):
                    self._thread.tell(self._deliver, pieces)
        finally:
            self._core = None
            core.close()

    def _obey(self, core: Core[O, P]) -> bool:
        """Carries out what is in the mailbox, waiting for something when the core is idle."""
        aborted: list[_Abort] = []
        for order in self._thread.take(wait=not core.active):
            match order:
                case _Add(ticket=ticket, order=wanted):
                    if refusal := core.add(ticket, wanted):
                        self._thread.tell(self._deliver, [Piece(ticket=ticket, end=refusal)])
                case _Abort():
                    aborted.append(order)
                case _Stop():
                    return False
        if aborted:
            core.abort([abort.ticket for abort in aborted])
            self._thread.released([abort.dropped for abort in aborted])
        return True

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

    def _fail(self) -> None:
        for running in self._running.values():
            if not running.end.done():
                running.end.set_exception(self._thread.failed())
