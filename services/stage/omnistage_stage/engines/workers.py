"""A bounded pool of threads for engines that compute in plain function calls.

A thread cannot be interrupted. So a cancelled caller waits until its piece of work is over before
the cancellation goes on: when `run` has returned, no thread reads the request's tensors any more,
and the replica's bound on running work holds. Engines keep the pieces short (a sentence, a tenth of
a second of audio) and ask `Work.wanted` in between.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["Work", "WorkerThreads"]

T = TypeVar("T")


class Work:
    """One piece of work, as its thread sees it."""

    def __init__(self) -> None:
        self._unwanted = threading.Event()

    def wanted(self) -> bool:
        """Whether somebody still waits for the result."""
        return not self._unwanted.is_set()

    def give_up(self) -> None:
        """Tells the thread that nobody waits any more."""
        self._unwanted.set()


class WorkerThreads:
    """A pool of threads, to be used from one event loop."""

    def __init__(self, *, name: str, size: int) -> None:
        self._executor = ThreadPoolExecutor(max_workers=size, thread_name_prefix=name)

    async def compute(self, function: Callable[[Work], T]) -> T:
        """Runs a function in a thread and returns what it returns, or raises what it raises.

        When cancelled, tells the function through its `Work` and waits for its end.
        """
        work = Work()
        submitted = self._executor.submit(function, work)
        result = asyncio.wrap_future(submitted)
        try:
            await asyncio.wait([result])
        except asyncio.CancelledError:
            work.give_up()
            if not submitted.cancel():
                await asyncio.wait([result])
                # Looked at, so that asyncio does not report it as forgotten.
                result.exception()
            raise
        return result.result()

    def close(self) -> None:
        """Ends the threads; to be called when no work is left."""
        self._executor.shutdown()
