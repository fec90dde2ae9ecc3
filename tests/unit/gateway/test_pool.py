"""The choice among the replicas of a stage."""

from collections import Counter

import pytest

from fakes.scripted_link import ScriptedLink
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import StageUnavailable
from omnistage_common.ids import StageName, new_request_id
from omnistage_common.links.frames import Data, Delivery, End, Error, Phase, Progress
from omnistage_common.payloads import Parameters
from omnistage_gateway.replicas.pool import StagePool

STAGE = StageName("thinker")


class Nobody:
    """A listener that does not care."""

    def received(self, frame: Data | Progress | End | Error) -> None:
        """Forgets it."""


def pool_of(*phases: Phase | None) -> tuple[StagePool, list[ScriptedLink]]:
    """A pool of replicas in these phases."""
    links = [ScriptedLink(STAGE, index, phase=phase) for index, phase in enumerate(phases)]
    return StagePool(STAGE, links), links


def busy(link: ScriptedLink, requests: int) -> None:
    """Gives a replica requests."""
    for _ in range(requests):
        link.open(
            Nobody(),
            request_id=new_request_id(),
            deadline=Deadline.after(10),
            delivery=Delivery.FINAL,
            inputs=(),
            parameters=Parameters(),
        )


def chosen(pool: StagePool) -> str:
    """The replica that would get the next request."""
    return pool.choose().endpoint.replica


@pytest.mark.parametrize(("outstanding", "least"), [((2, 1, 3), 1), ((0, 1, 1), 0), ((5, 4, 3), 2)])
def test_the_replica_with_the_least_work_is_chosen(
    outstanding: tuple[int, ...], least: int
) -> None:
    pool, links = pool_of(*(Phase.READY for _ in outstanding))
    for link, requests in zip(links, outstanding, strict=True):
        busy(link, requests)

    assert {chosen(pool) for _ in outstanding} == {f"thinker-{least}"}


def test_equals_take_turns() -> None:
    pool, _ = pool_of(Phase.READY, Phase.READY, Phase.READY)

    assert Counter(chosen(pool) for _ in range(9)) == {f"thinker-{i}": 3 for i in range(3)}


def test_equals_take_turns_beside_a_busier_one() -> None:
    pool, links = pool_of(Phase.READY, Phase.READY, Phase.READY)
    busy(links[0], 1)

    assert {chosen(pool) for _ in range(6)} == {"thinker-1", "thinker-2"}


def test_an_ended_request_counts_no_more() -> None:
    pool, links = pool_of(Phase.READY, Phase.READY)
    busy(links[0], 1)
    busy(links[1], 1)

    links[1].ends()

    assert {chosen(pool) for _ in range(3)} == {"thinker-1"}


@pytest.mark.parametrize("phase", [None, Phase.LOADING, Phase.DRAINING, Phase.FAILED])
def test_only_a_ready_replica_is_chosen_however_idle_the_others(phase: Phase | None) -> None:
    pool, links = pool_of(phase, Phase.READY)
    busy(links[1], 3)

    assert {chosen(pool) for _ in range(4)} == {"thinker-1"}
    assert pool.ready


def test_without_a_ready_replica_the_error_says_why_for_each() -> None:
    pool, _ = pool_of(None, Phase.LOADING, Phase.DRAINING, Phase.FAILED)

    with pytest.raises(StageUnavailable) as chosen_from_none:
        pool.choose()
    with pytest.raises(StageUnavailable) as checked:
        pool.check_ready()

    assert not pool.ready
    assert chosen_from_none.value.message == checked.value.message
    assert chosen_from_none.value.retry_after is not None
    for words in (
        "thinker-0 is not connected",
        "thinker-1 is loading",
        "thinker-2 is draining",
        "thinker-3 is failed",
    ):
        assert words in checked.value.message


def test_a_stage_without_replicas_says_so() -> None:
    pool, _ = pool_of()

    with pytest.raises(StageUnavailable, match="thinker is ready: it has none"):
        pool.choose()


def test_a_replica_whose_link_breaks_is_not_chosen() -> None:
    pool, links = pool_of(Phase.READY)
    pool.check_ready()

    links[0].breaks()

    assert not pool.ready
