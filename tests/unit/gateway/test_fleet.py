"""Links that come with their replicas and go when nobody needs them any more."""

from collections.abc import Iterable

import pytest

from fakes.frames import reference
from fakes.idle_link import Links, endpoint
from fakes.staged_request import turns
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import StageUnavailable
from omnistage_common.ids import RequestId, StageName
from omnistage_common.links.frames import Data, Delivery, End, Error, Phase, Progress
from omnistage_common.payloads import Parameters
from omnistage_gateway.replicas.endpoints import ServiceKey
from omnistage_gateway.replicas.fleet import Fleet
from omnistage_gateway.replicas.pool import StagePool

THINKERS, SPEAKERS = ServiceKey(name="thinker-1"), ServiceKey(name="speaker-1")
STAGE = StageName("thinker")


class Caller:
    """Keeps what comes of a request."""

    def __init__(self) -> None:
        self.frames: list[Data | Progress | End | Error] = []

    def received(self, frame: Data | Progress | End | Error) -> None:
        """Keeps a frame."""
        self.frames.append(frame)


def ask(pool: StagePool) -> str:
    """Sends a request; the replica that got it."""
    link = pool.choose()
    link.open(
        Caller(),
        request_id=RequestId("r"),
        deadline=Deadline.after(30),
        delivery=Delivery.FINAL,
        inputs=(),
        parameters=Parameters(),
    )
    return link.endpoint.replica


def names(links: Iterable[object]) -> list[str]:
    """Replicas that links lead to."""
    return [link.endpoint.replica for link in links]  # type: ignore[attr-defined]


async def test_a_replica_that_nobody_uses_has_no_link() -> None:
    links = Links()
    async with Fleet(links) as fleet:
        fleet.place(THINKERS, [endpoint("a"), endpoint("b")])
        assert links.made == []

        pool = fleet.acquire(THINKERS, STAGE, max_running=1)

        assert names(pool.links) == names(links.made) == ["a", "b"]


async def test_what_is_used_before_it_is_there_is_empty_until_then() -> None:
    links = Links()
    async with Fleet(links) as fleet:
        pool = fleet.acquire(THINKERS, STAGE, max_running=1)
        with pytest.raises(StageUnavailable, match="it has none"):
            pool.choose()

        fleet.place(THINKERS, [endpoint("a")])

        assert ask(pool) == "a"


async def test_all_who_use_a_service_share_its_links() -> None:
    links = Links()
    async with Fleet(links) as fleet:
        fleet.place(THINKERS, [endpoint("a")])
        one = fleet.acquire(THINKERS, STAGE, max_running=1)
        other = fleet.acquire(THINKERS, STAGE, max_running=1)
        await turns()
        assert one is other
        assert len(links.made) == 1

        fleet.release(THINKERS)
        assert ask(other) == "a"
        links["a"].ends()
        fleet.release(THINKERS)
        await turns()

        assert links.ended("a")
        assert fleet.links == ()


async def test_a_new_replica_gets_requests_at_once() -> None:
    links = Links()
    async with Fleet(links) as fleet:
        pool = fleet.acquire(THINKERS, STAGE, max_running=1)
        fleet.place(THINKERS, [endpoint("a")])
        assert {ask(pool) for _ in range(3)} == {"a"}

        fleet.place(THINKERS, [endpoint("a"), endpoint("b")])

        assert [ask(pool) for _ in range(3)] == ["b"] * 3
        assert len(links.made) == 2


async def test_a_replica_that_goes_gets_no_new_requests_and_ends_those_it_has() -> None:
    links = Links()
    async with Fleet(links) as fleet:
        pool = fleet.acquire(THINKERS, STAGE, max_running=1)
        fleet.place(THINKERS, [endpoint("a"), endpoint("b")])
        assert {ask(pool), ask(pool)} == {"a", "b"}

        fleet.place(THINKERS, [endpoint("b")])
        await turns()

        assert {ask(pool) for _ in range(4)} == {"b"}
        assert not links.ended("a")
        assert names(pool.leaving) == ["a"]
        links["a"].ends()
        await turns()
        assert links.ended("a")
        assert pool.leaving == ()


async def test_what_a_leaving_replica_holds_keeps_its_link() -> None:
    """An ended request may have made tensors that others still read."""
    links = Links()
    async with Fleet(links) as fleet:
        pool = fleet.acquire(THINKERS, STAGE, max_running=1)
        fleet.place(THINKERS, [endpoint("a")])
        ask(pool)
        fleet.place(THINKERS, [])
        link = links["a"]
        link.makes([reference()])
        await turns()
        assert not link.ended

        link.close(link.opens[-1].request, "done")
        await turns()

        assert link.ended


async def test_a_leaving_replica_that_breaks_is_gone() -> None:
    links = Links()
    async with Fleet(links) as fleet:
        pool = fleet.acquire(THINKERS, STAGE, max_running=1)
        fleet.place(THINKERS, [endpoint("a")])
        ask(pool)
        await turns()
        fleet.place(THINKERS, [])

        links["a"].breaks()
        await turns()

        assert links.ended("a")
        assert fleet.links == ()


async def test_a_replica_that_flaps_keeps_its_link_while_it_is_busy() -> None:
    links = Links()
    async with Fleet(links) as fleet:
        pool = fleet.acquire(THINKERS, STAGE, max_running=1)
        fleet.place(THINKERS, [endpoint("a")])
        ask(pool)
        for _ in range(5):
            fleet.place(THINKERS, [])
            assert not pool.ready
            fleet.place(THINKERS, [endpoint("a")])
            assert pool.ready
        await turns()

        links["a"].ends()
        await turns()

        assert len(links.made) == 1
        assert not links.ended("a")
        assert ask(pool) == "a"


async def test_a_replica_that_flaps_while_it_is_idle_gets_a_new_link() -> None:
    links = Links()
    async with Fleet(links) as fleet:
        pool = fleet.acquire(THINKERS, STAGE, max_running=1)
        fleet.place(THINKERS, [endpoint("a")])
        await turns()
        fleet.place(THINKERS, [])
        fleet.place(THINKERS, [endpoint("a")])
        await turns()

        assert [link.ended for link in links.made] == [True, False]
        assert ask(pool) == "a"


async def test_another_life_is_another_replica() -> None:
    links = Links()
    async with Fleet(links) as fleet:
        pool = fleet.acquire(THINKERS, STAGE, max_running=1)
        fleet.place(THINKERS, [endpoint("a", life="1")])
        ask(pool)

        fleet.place(THINKERS, [endpoint("a", life="2")])
        await turns()

        assert [link.ended for link in links.made] == [False, False]
        assert pool.links == (links.made[1],)
        assert pool.leaving == (links.made[0],)


async def test_a_service_may_be_used_again_while_old_links_still_leave() -> None:
    links = Links()
    async with Fleet(links) as fleet:
        fleet.place(THINKERS, [endpoint("a")])
        ask(fleet.acquire(THINKERS, STAGE, max_running=1))
        fleet.release(THINKERS)

        pool = fleet.acquire(THINKERS, STAGE, max_running=1)
        links["a"].breaks()
        links["a"].says_phase(Phase.READY)
        await turns()

        assert len(links.made) == 1
        assert ask(pool) == "a"


async def test_who_waits_for_a_stage_is_told_once_of_each_change() -> None:
    links = Links(phase=None)
    told: list[bool] = []
    async with Fleet(links) as fleet:
        pool = fleet.acquire(THINKERS, STAGE, max_running=1)

        def watcher() -> None:
            told.append(pool.ready)

        pool.watch(watcher)
        fleet.place(THINKERS, [endpoint("a"), endpoint("b")])
        assert told == []
        links["a"].says_phase(Phase.LOADING)
        links["a"].says_phase(Phase.READY)
        links["b"].says_phase(Phase.READY)
        links["a"].breaks()
        assert told == [True]
        links["b"].breaks()
        assert told == [True, False]
        pool.unwatch(watcher)
        links["b"].says_phase(Phase.READY)
        assert told == [True, False]


async def test_services_do_not_touch_each_other() -> None:
    links = Links()
    async with Fleet(links) as fleet:
        fleet.place(THINKERS, [endpoint("a")])
        fleet.place(SPEAKERS, [endpoint("b", "speaker")])
        thinkers = fleet.acquire(THINKERS, STAGE, max_running=1)
        speakers = fleet.acquire(SPEAKERS, StageName("speaker"), max_running=1)

        fleet.place(THINKERS, [])

        assert not thinkers.ready
        assert ask(speakers) == "b"


async def test_all_links_end_with_the_fleet() -> None:
    links = Links()
    async with Fleet(links) as fleet:
        pool = fleet.acquire(THINKERS, STAGE, max_running=1)
        fleet.place(THINKERS, [endpoint("a"), endpoint("b")])
        await turns()
        ask(pool)

    assert all(link.ended for link in links.made)
    assert fleet.links == ()


async def test_what_ends_the_body_comes_out_as_it_is() -> None:
    links = Links()

    async def fails_within() -> None:
        async with Fleet(links) as fleet:
            fleet.place(THINKERS, [endpoint("a")])
            fleet.acquire(THINKERS, STAGE, max_running=1)
            await turns()
            raise StageUnavailable("as the test says")

    with pytest.raises(StageUnavailable):
        await fails_within()
    assert links.ended("a")
