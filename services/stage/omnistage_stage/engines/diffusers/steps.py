"""Stands in for a pipeline's progress bar: counts steps, draws nothing.

Every diffusers pipeline, old or new, asks its own `progress_bar` for a bar and moves it once per
denoising step. Callbacks are not so universal (some pipelines have an older one, some none), and
schedulers of higher order are called more often than once per step. So the bar is where progress is
heard and where a call that nobody wants any more is stopped, by an exception.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

__all__ = ["StepBar", "count_steps"]

Report = Callable[[int, int], None]
"""Told how many steps are done, and of how many. What it raises ends the pipeline's call."""


class StepBar:
    """One loop of a pipeline, in the shape of a tqdm bar."""

    def __init__(
        self, report: Report, iterable: Iterable[Any] | None = None, total: int | None = None
    ) -> None:
        self._steps = None if iterable is None else list(iterable)
        self._total = total if self._steps is None else len(self._steps)
        self._done = 0
        self._report = report

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __iter__(self) -> Iterator[Any]:
        for step in self._steps or ():
            yield step
            self.update()

    def update(self, steps: int = 1) -> None:
        """Some steps are done."""
        self._done += steps
        self._report(self._done, max(self._total or 0, self._done))

    def set_description(self, *_: object, **__: object) -> None:
        """Nothing is drawn."""

    def close(self) -> None:
        """Nothing is held."""


def count_steps(pipeline: Any, report: Report) -> None:
    """From now on, a pipeline tells about its steps."""

    def bar(iterable: Iterable[Any] | None = None, total: int | None = None, **_: Any) -> StepBar:
        return StepBar(report, iterable, total)

    pipeline.progress_bar = bar
