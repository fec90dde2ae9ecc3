"""What stands in for a progress bar counts the steps of every kind of pipeline."""

from typing import Any

import pytest

from omnistage_stage.engines.diffusers.steps import StepBar, count_steps


class Pipeline:
    """Asks for bars in the ways in which diffusers' pipelines do."""

    progress_bar: Any = None
    """To be replaced."""


def test_a_bar_that_is_moved_by_hand() -> None:
    pipeline, told = Pipeline(), list[tuple[int, int]]()
    count_steps(pipeline, lambda done, total: told.append((done, total)))
    with pipeline.progress_bar(total=3) as bar:
        for _ in range(3):
            bar.update()
            bar.set_description("denoising")
    bar.close()

    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_bar_that_is_iterated() -> None:
    pipeline, told = Pipeline(), list[tuple[int, int]]()
    count_steps(pipeline, lambda done, total: told.append((done, total)))

    assert list(pipeline.progress_bar(iter("abc"), leave=False)) == ["a", "b", "c"]
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_more_steps_than_were_announced_are_no_more_than_all() -> None:
    told = list[tuple[int, int]]()
    bar = StepBar(lambda done, total: told.append((done, total)), total=1)
    bar.update()
    bar.update()

    assert told == [(1, 1), (2, 2)]


def test_what_the_listener_raises_ends_the_loop() -> None:
    def stop(_done: int, _total: int) -> None:
        raise LookupError

    with pytest.raises(LookupError), StepBar(stop, total=2) as bar:
        bar.update()
