"""A drain ends when nothing is open, or when its grace has passed, and not before."""

import asyncio

import pytest

from omnistage_common.links.frames import Phase
from omnistage_stage.service.draining import Drain
from omnistage_stage.service.lifecycle import Lifecycle

PLENTY_S = 30.0


class CountedLink:
    """A link, as far as a drain cares."""

    def __init__(self, open_requests: int) -> None:
        self.open_requests = open_requests
        self.finished = 0

    def finish(self) -> None:
        """Counts."""
        self.finished += 1


@pytest.fixture
def lifecycle() -> Lifecycle:
    ready = Lifecycle()
    ready.enter(Phase.READY)
    return ready


def drain_of(lifecycle: Lifecycle, *links: CountedLink) -> Drain:
    """A drain that knows these links."""
    drain = Drain(lifecycle)
    for link in links:
        drain.joined(link)
    return drain


async def begun(drain: Drain, grace: float | None = PLENTY_S) -> "asyncio.Task[int]":
    """A drain that has had its first turn."""
    task = asyncio.create_task(drain.run(grace))
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("grace", [0.0, PLENTY_S, None])
async def test_an_idle_replica_is_drained_at_once(
    lifecycle: Lifecycle, grace: float | None
) -> None:
    idle = CountedLink(0)

    assert await drain_of(lifecycle, idle).run(grace) == 0

    assert idle.finished == 1
    assert lifecycle.phase is Phase.DRAINING


async def test_a_drain_refuses_first_and_then_waits_for_the_last_request(
    lifecycle: Lifecycle,
) -> None:
    one, two = CountedLink(1), CountedLink(2)
    drain = drain_of(lifecycle, one, two)
    draining = await begun(drain)
    assert lifecycle.phase is Phase.DRAINING
    assert drain.open_requests == 3

    for link in (one, two, two):
        assert not draining.done()
        assert one.finished == two.finished == 0
        link.open_requests -= 1
        drain.changed()
        await asyncio.sleep(0)

    assert await draining == 0
    assert (one.finished, two.finished) == (1, 1)


async def test_requests_of_a_link_that_breaks_are_gone_with_it(lifecycle: Lifecycle) -> None:
    broken = CountedLink(5)
    drain = drain_of(lifecycle, broken)
    draining = await begun(drain, None)

    drain.left(broken)

    assert await draining == 0
    assert broken.finished == 0


async def test_what_is_left_after_the_grace_period_is_counted(lifecycle: Lifecycle) -> None:
    busy = CountedLink(3)

    assert await drain_of(lifecycle, busy).run(0.01) == 3

    assert busy.finished == 0


async def test_a_second_drain_waits_for_the_same_end(lifecycle: Lifecycle) -> None:
    link = CountedLink(1)
    drain = drain_of(lifecycle, link)
    first, second = await begun(drain, None), await begun(drain)

    link.open_requests = 0
    drain.changed()

    assert (await first, await second) == (0, 0)
    assert await drain.run(None) == 0


async def test_a_drain_that_ran_out_of_grace_can_be_asked_for_again(lifecycle: Lifecycle) -> None:
    link = CountedLink(1)
    drain = drain_of(lifecycle, link)
    assert await drain.run(0.0) == 1
    again = await begun(drain)

    link.open_requests = 0
    drain.changed()

    assert await again == 0


async def test_changes_without_a_drain_mean_nothing(lifecycle: Lifecycle) -> None:
    link = CountedLink(0)
    drain = drain_of(lifecycle, link)

    drain.changed()
    link.open_requests = 1
    draining = await begun(drain)

    assert not draining.done()
    drain.left(link)
    await draining
