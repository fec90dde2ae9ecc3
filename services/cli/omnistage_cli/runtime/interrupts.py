"""Signals as events: the first asks for a clean end, the second for the end.

Captured while a run lasts and given back afterwards. Children do not get the terminal's Ctrl-C (each
leads a session of its own), so what a signal means is decided here and nowhere else.
"""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["Interrupts", "interrupts"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """What the user has asked for so far."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        """Set by the first signal: drain and end."""
        self.kill = asyncio.Event()
        """Set by the second: end now."""

    def interrupt(self) -> None:
        """Takes one signal."""
        if self.stop.is_set():
            self.kill.set()
        self.stop.set()


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Captures SIGINT, SIGTERM and SIGHUP on the running loop while it lasts."""
    loop = asyncio.get_running_loop()
    taken = Interrupts()
    for number in _SIGNALS:
        loop.add_signal_handler(number, taken.interrupt)
    try:
        yield taken
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
