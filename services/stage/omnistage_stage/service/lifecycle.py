"""The life of a replica as a state machine without I/O.

LOADING → READY → DRAINING, and FAILED from anywhere; nothing leads back. A replica that lost its
engine is replaced, not mended.
"""

from collections.abc import Callable
from typing import Final

from omnistage_common.errors import Draining, OmnistageError, StageUnavailable
from omnistage_common.links.frames import Phase

__all__ = ["Lifecycle"]

_NEXT: Final = {
    Phase.LOADING: {Phase.READY, Phase.DRAINING, Phase.FAILED},
    Phase.READY: {Phase.DRAINING, Phase.FAILED},
    Phase.DRAINING: {Phase.FAILED},
    Phase.FAILED: set[Phase](),
}


class Lifecycle:
    """Where the replica is, and who wants to know."""

    def __init__(self) -> None:
        self.phase = Phase.LOADING
        self.message = ""
        self._listeners: set[Callable[[], None]] = set()

    def enter(self, phase: Phase, message: str = "") -> bool:
        """Moves to a phase and tells the listeners.

        Returns:
            False when the table does not lead there; nothing changes then.
        """
        if phase not in _NEXT[self.phase]:
            return False
        self.phase = phase
        self.message = message
        for listener in tuple(self._listeners):
            listener()
        return True

    def refusal(self) -> OmnistageError | None:
        """Why a new request is refused now, None when it is welcome."""
        if self.phase is Phase.READY:
            return None
        if self.phase is Phase.DRAINING:
            return Draining("this replica is going out of service; try again")
        if self.phase is Phase.FAILED:
            return StageUnavailable(f"the engine of this replica failed: {self.message}")
        return StageUnavailable("the model of this replica is still loading")

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls the listener after each change."""
        self._listeners.add(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Stops calling it."""
        self._listeners.discard(listener)
