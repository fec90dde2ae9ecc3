"""How preparing weights tells what it is doing.

It takes from a fraction of a second to minutes, within a command line, a set-up script or a stage
that loads; whoever waits passes a function that shows it in its own way.
"""

from typing import Protocol

import structlog

__all__ = ["Progress", "logged", "silent"]

_log = structlog.get_logger(__name__)


class Progress(Protocol):
    """Told about each step, from the thread that does the work."""

    def __call__(self, message: str, /) -> None:
        """One step begins: a phrase for people, e.g. `converting model.gguf`."""


def silent(_message: str, /) -> None:
    """Shows nothing."""


def logged(message: str, /) -> None:
    """Writes each step to the log; for a stage that loads."""
    _log.info("preparing weights", step=message)
