"""Admission: two bounds, first in, first out, and nobody forgotten."""

import asyncio
import random

import pytest

from omnistage_common.errors import TooManyRequests
from omnistage_stage.service.admission import Admission, Place


async def has_turn(place: Place) -> bool:
    """Whether the place is taken now."""
    taken = asyncio.ensure_future(place.taken())
    for _ in range(3):
        await asyncio.sleep(0)
    return taken.done() or not taken.cancel()


async def test_places_are_given_at_once_while_there_are_some() -> None:
    admission = Admission(max_running=2, max_queued=0)

    for _ in range(2):
        assert await has_turn(admission.enter())

    assert (admission.running, admission.queued) == (2, 0)


async def test_one_more_than_both_bounds_is_refused_and_told_what_they_are() -> None:
    admission = Admission(max_running=1, max_queued=2)
    for _ in range(3):
        admission.enter()

    with pytest.raises(TooManyRequests, match="1 requests run and 2 wait") as refused:
        admission.enter()

    assert refused.value.retry_after == 1.0
    assert (admission.running, admission.queued) == (1, 2)


async def test_whoever_waits_longest_is_next() -> None:
    admission = Admission(max_running=1, max_queued=3)
    running, *waiting = [admission.enter() for _ in range(4)]
    order: list[int] = []

    async def serve(number: int, place: Place) -> None:
        await place.taken()
        order.append(number)
        place.leave()

    async with asyncio.TaskGroup() as group:
        for number in (2, 0, 1):
            group.create_task(serve(number, waiting[number]))
        await asyncio.sleep(0)
        running.leave()

    assert order == [0, 1, 2]
    assert (admission.running, admission.queued) == (0, 0)


async def test_a_newcomer_does_not_overtake_the_queue() -> None:
    admission = Admission(max_running=1, max_queued=2)
    first, second = admission.enter(), admission.enter()

    first.leave()
    third = admission.enter()

    await asyncio.wait_for(second.taken(), 1)
    assert not await has_turn(third)
    third.leave()
    second.leave()


async def test_leaving_the_queue_frees_the_position_and_nothing_else() -> None:
    admission = Admission(max_running=1, max_queued=1)
    admission.enter()
    waiting = admission.enter()

    waiting.leave()

    assert (admission.running, admission.queued) == (1, 0)
    admission.enter()
    assert admission.queued == 1


async def test_leaving_twice_frees_one_place() -> None:
    admission = Admission(max_running=1, max_queued=2)
    first, second, third = (admission.enter() for _ in range(3))

    first.leave()
    first.leave()

    await asyncio.wait_for(second.taken(), 1)
    assert (admission.running, admission.queued) == (1, 1)
    assert not await has_turn(third)


async def test_a_cancelled_wait_is_passed_over() -> None:
    admission = Admission(max_running=1, max_queued=2)
    running, cancelled, patient = (admission.enter() for _ in range(3))
    wait = asyncio.ensure_future(cancelled.taken())
    await asyncio.sleep(0)
    wait.cancel()
    await asyncio.wait((wait,))

    running.leave()

    await asyncio.wait_for(patient.taken(), 1)
    cancelled.leave()
    assert (admission.running, admission.queued) == (1, 0)


async def test_a_place_that_was_handed_over_and_not_picked_up_goes_on() -> None:
    admission = Admission(max_running=1, max_queued=2)
    running, gone, patient = (admission.enter() for _ in range(3))

    running.leave()
    gone.leave()

    await asyncio.wait_for(patient.taken(), 1)
    assert (admission.running, admission.queued) == (1, 0)


@pytest.mark.parametrize("seed", range(10))
async def test_the_bounds_hold_on_any_walk_and_no_place_is_idle_while_one_waits(seed: int) -> None:
    die = random.Random(seed)  # noqa: S311 - reproducible
    admission = Admission(max_running=3, max_queued=4)
    inside: list[Place] = []
    for _ in range(300):
        if die.random() < 0.55:
            full = admission.running + admission.queued == 7
            try:
                inside.append(admission.enter())
            except TooManyRequests:
                assert full
        elif inside:
            inside.pop(die.randrange(len(inside))).leave()
        assert admission.running + admission.queued == len(inside)
        assert admission.running == min(3, len(inside))

    for place in inside:
        place.leave()
    assert (admission.running, admission.queued) == (0, 0)
