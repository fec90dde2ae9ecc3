"""May this process write? Known without asking anybody, so that a loser of the lease stops by itself.

A leader's right to write ends at an instant, not by a message: when the lease cannot be renewed in
time (the network is cut, the process was frozen), nobody is there to tell it. Every write asks the
fence right before it is sent, and may not outlast it.
"""

import math
import time
from collections.abc import Callable

from omnistage_common.cluster.errors import WriteFenced

__all__ = ["Fence"]


class Fence:
    """Closed until it is opened until an instant; opened further with every renewal."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open_until = -math.inf

    @classmethod
    def always_open(cls) -> "Fence":
        """For a process that runs without election."""
        fence = cls()
        fence.open_until(math.inf)
        return fence

    def open_until(self, instant: float) -> None:
        """Writes may be sent before this instant of the clock."""
        self._open_until = instant

    def close(self) -> None:
        """No write is sent from now on."""
        self._open_until = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether a write may be sent now."""
        return self.remaining() > 0

    def remaining(self) -> float:
        """Seconds for which writes may still be sent; 0 when none may."""
        return max(0.0, self._open_until - self._clock())

    def check(self) -> float:
        """Seconds for which a write may still be under way.

        Raises:
            WriteFenced: None may be sent.
        """
        remaining = self.remaining()
        if remaining <= 0:
            raise WriteFenced(
                "this process does not hold the lease, so it writes nothing; "
                "the process that holds it goes on"
            )
        return remaining
