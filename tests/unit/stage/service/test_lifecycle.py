"""The life of a replica, as a table."""

import itertools

import pytest

from omnistage_common.errors import Draining, StageUnavailable
from omnistage_common.links.frames import Phase
from omnistage_stage.service.lifecycle import Lifecycle

ALLOWED = {
    (Phase.LOADING, Phase.READY),
    (Phase.LOADING, Phase.DRAINING),
    (Phase.LOADING, Phase.FAILED),
    (Phase.READY, Phase.DRAINING),
    (Phase.READY, Phase.FAILED),
    (Phase.DRAINING, Phase.FAILED),
}


def lifecycle_in(phase: Phase) -> Lifecycle:
    """A life that has come to this phase."""
    lifecycle = Lifecycle()
    if phase is not Phase.LOADING:
        assert lifecycle.enter(phase, "so far")
    return lifecycle


@pytest.mark.parametrize(("before", "after"), [*itertools.product(Phase, Phase)])
def test_a_phase_leads_where_the_table_says(before: Phase, after: Phase) -> None:
    lifecycle = lifecycle_in(before)
    message = lifecycle.message

    moved = lifecycle.enter(after, "why")

    assert moved is ((before, after) in ALLOWED)
    assert lifecycle.phase is (after if moved else before)
    assert lifecycle.message == ("why" if moved else message)


def test_only_a_ready_replica_takes_requests() -> None:
    assert lifecycle_in(Phase.READY).refusal() is None
    for phase in (Phase.LOADING, Phase.FAILED):
        assert type(lifecycle_in(phase).refusal()) is StageUnavailable
    assert type(lifecycle_in(Phase.DRAINING).refusal()) is Draining


def test_the_refusal_of_a_failed_replica_says_what_failed() -> None:
    refusal = lifecycle_in(Phase.FAILED).refusal()

    assert refusal is not None
    assert "so far" in refusal.message


def test_listeners_hear_of_changes_after_they_happened() -> None:
    lifecycle = Lifecycle()
    heard: list[Phase] = []
    lifecycle.listen(lambda: heard.append(lifecycle.phase))

    for phase in (Phase.READY, Phase.READY, Phase.DRAINING, Phase.LOADING):
        lifecycle.enter(phase)

    assert heard == [Phase.READY, Phase.DRAINING]


def test_whoever_stopped_listening_hears_nothing_and_may_stop_while_being_told() -> None:
    lifecycle = Lifecycle()
    heard: list[str] = []

    def once() -> None:
        heard.append("once")
        lifecycle.unlisten(once)

    lifecycle.listen(once)
    lifecycle.listen(lambda: heard.append("always"))

    lifecycle.enter(Phase.READY)
    lifecycle.enter(Phase.DRAINING)

    assert sorted(heard) == ["always", "always", "once"]
    lifecycle.unlisten(once)
