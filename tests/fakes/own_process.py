"""An object in a process of its own: what other tests did to a runtime in this one does not reach it.

Foreign runtimes have settings for a whole process (threads, kernels), and what one test loads may change
them for the next. A reference that is compared bit for bit is therefore made where a stage is made: in a
fresh process with one thread.
"""

import importlib
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

__all__ = ["OwnProcess"]

_made: list[Any] = []


class OwnProcess:
    """See the module.

    Args:
        module: Dotted name of the module with the function.
        function: Makes the object.
        arguments: Of the function.
    """

    def __init__(self, module: str, function: str, *arguments: Any) -> None:
        self._pool = ProcessPoolExecutor(
            1,
            mp_context=get_context("spawn"),
            initializer=_make,
            initargs=(module, function, arguments),
        )

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """What a method of the object returns; raises what it raises."""
        return self._pool.submit(_call, method, arguments, named).result()

    def close(self) -> None:
        """Ends the process."""
        self._pool.shutdown()


def _make(module: str, function: str, arguments: tuple[Any, ...]) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    _made.append(getattr(importlib.import_module(module), function)(*arguments))


def _call(method: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return getattr(_made[0], method)(*arguments, **named)
