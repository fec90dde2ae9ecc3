"""The life of a process, as tables."""

from collections.abc import Sequence

import pytest

from omnistage_cli.runtime.supervision import (
    SETUP_EXIT_CODE,
    Event,
    Exited,
    Loading,
    ReplicaPhase,
    RestartPolicy,
    RetryDue,
    Serving,
    StopRequested,
    Supervision,
    advance,
)

POLICY = RestartPolicy(first_delay=0.5, max_delay=4.0, steady_after=30.0, max_crashes=3)
CRASH = Exited(code=1, at=10.0)


def after(*events: Event) -> Supervision:
    """What is known after events, from the start on."""
    state = Supervision()
    for event in events:
        state = advance(state, event, POLICY)
    return state


def rows_of_crashes(count: int) -> list[Event]:
    """Crashes with the retries between them."""
    row: list[Event] = [RetryDue(), CRASH] * count
    return row[1:]


@pytest.mark.parametrize(
    ("events", "phase"),
    [
        ([], ReplicaPhase.STARTING),
        ([Loading()], ReplicaPhase.LOADING),
        ([Loading(), Serving(at=1)], ReplicaPhase.READY),
        ([Serving(at=1)], ReplicaPhase.READY),
        ([Serving(at=1), Loading()], ReplicaPhase.LOADING),
        ([CRASH], ReplicaPhase.BACKING_OFF),
        ([Loading(), CRASH], ReplicaPhase.BACKING_OFF),
        ([Serving(at=1), CRASH], ReplicaPhase.BACKING_OFF),
        ([CRASH, RetryDue()], ReplicaPhase.STARTING),
        ([StopRequested()], ReplicaPhase.STOPPING),
        ([Loading(), StopRequested()], ReplicaPhase.STOPPING),
        ([Serving(at=1), StopRequested()], ReplicaPhase.STOPPING),
        ([Serving(at=1), StopRequested(), CRASH], ReplicaPhase.STOPPED),
        ([CRASH, StopRequested()], ReplicaPhase.STOPPED),
        (rows_of_crashes(3), ReplicaPhase.GIVEN_UP),
        ([Exited(code=SETUP_EXIT_CODE, at=1)], ReplicaPhase.GIVEN_UP),
    ],
)
def test_events_lead_from_phase_to_phase(events: Sequence[Event], phase: ReplicaPhase) -> None:
    assert after(*events).phase is phase


@pytest.mark.parametrize(
    "late", [Loading(), Serving(at=5), StopRequested()], ids=lambda event: type(event).__name__
)
def test_what_arrives_while_it_stops_changes_nothing(late: Event) -> None:
    stopping = after(Serving(at=1), StopRequested())

    assert advance(stopping, late, POLICY) == stopping


@pytest.mark.parametrize("events", [[CRASH, StopRequested()], rows_of_crashes(3)])
def test_a_request_to_stop_may_come_after_the_end(events: Sequence[Event]) -> None:
    over = after(*events)

    assert over.phase.final
    assert advance(over, StopRequested(), POLICY) == over


@pytest.mark.parametrize(
    ("events", "impossible"),
    [
        ([CRASH], Serving(at=1)),
        ([CRASH], CRASH),
        ([], RetryDue()),
        ([CRASH, StopRequested()], RetryDue()),
        (rows_of_crashes(3), CRASH),
    ],
)
def test_an_event_that_cannot_happen_is_a_defect(
    events: Sequence[Event], impossible: Event
) -> None:
    with pytest.raises(ValueError, match="cannot happen"):
        advance(after(*events), impossible, POLICY)


@pytest.mark.parametrize(("crashes", "delay"), [(1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0), (9, 4.0)])
def test_the_delay_doubles_up_to_its_bound(crashes: int, delay: float) -> None:
    state = after(Serving(at=1), *rows_of_crashes(crashes))

    assert (state.crashes, state.delay) == (crashes, delay)


def test_having_served_for_a_while_ends_a_row_of_crashes() -> None:
    row = [Serving(at=0), *rows_of_crashes(3), RetryDue()]

    steady = after(*row, Serving(at=100), Exited(code=1, at=130))
    hasty = after(*row, Serving(at=100), Exited(code=1, at=129))

    assert (steady.crashes, steady.delay) == (1, 0.5)
    assert (hasty.crashes, hasty.delay) == (4, 4.0)


def test_one_that_has_served_is_never_given_up() -> None:
    state = after(Serving(at=1), *rows_of_crashes(50))

    assert state.phase is ReplicaPhase.BACKING_OFF


def test_one_that_has_served_is_retried_even_when_its_setup_is_wrong_now() -> None:
    state = after(Serving(at=1), Exited(code=SETUP_EXIT_CODE, at=2))

    assert state.phase is ReplicaPhase.BACKING_OFF


def test_an_exit_without_a_request_is_a_crash_whatever_the_code() -> None:
    assert after(Serving(at=1), Exited(code=0, at=2)).phase is ReplicaPhase.BACKING_OFF


def test_restarts_are_counted_over_the_whole_run() -> None:
    state = after(
        Serving(at=0), CRASH, RetryDue(), Serving(at=11), Exited(code=-9, at=99), RetryDue()
    )

    assert (state.restarts, state.crashes, state.last_exit) == (2, 1, -9)


def test_serving_counts_from_the_first_time_in_a_life() -> None:
    state = after(Serving(at=5), Loading(), Serving(at=9))

    assert state.serving_since == 5


def test_a_new_life_has_not_served_yet() -> None:
    assert after(Serving(at=5), CRASH, RetryDue()).serving_since is None
