"""What the gateway lets in at once."""

from contextlib import ExitStack

import pytest

from omnistage_common.errors import (
    BodyTooLarge,
    Draining,
    EngineFailed,
    OmnistageError,
    TooManyRequests,
)
from omnistage_gateway.admission import Admission

MAX_BODY = 100
BUDGET = 250


@pytest.fixture
def admission() -> Admission:
    return Admission(max_requests=3, max_body_bytes=MAX_BODY, body_budget_bytes=BUDGET)


def test_a_request_counts_while_it_is_inside(admission: Admission) -> None:
    with admission.enter(40):
        assert (admission.requests, admission.body_bytes) == (1, 40)
        with admission.enter(10):
            assert (admission.requests, admission.body_bytes) == (2, 50)
    assert (admission.requests, admission.body_bytes) == (0, 0)


def test_a_request_that_fails_counts_no_more(admission: Admission) -> None:
    with pytest.raises(EngineFailed), admission.enter(40):
        raise EngineFailed("broken")

    assert (admission.requests, admission.body_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("inside", "next_one", "refusal"),
    [
        ((), MAX_BODY, None),
        ((), MAX_BODY + 1, BodyTooLarge),
        ((0, 0), 0, None),
        ((0, 0, 0), 0, TooManyRequests),
        ((100, 100), 50, None),
        ((100, 100), 51, TooManyRequests),
        ((100, 50), None, None),
        ((100, 51), None, TooManyRequests),
        ((None, None), 50, None),
        ((None, None), None, TooManyRequests),
        ((0, 0, 0), MAX_BODY + 1, BodyTooLarge),
    ],
)
def test_bounds_hold_before_a_byte_of_the_body_is_read(
    admission: Admission,
    inside: tuple[int | None, ...],
    next_one: int | None,
    refusal: type[OmnistageError] | None,
) -> None:
    with ExitStack() as stack:
        for declared in inside:
            stack.enter_context(admission.enter(declared))
        before = (admission.requests, admission.body_bytes)
        if refusal is None:
            stack.enter_context(admission.enter(next_one))
        else:
            with pytest.raises(refusal), admission.enter(next_one):
                raise AssertionError("it was let in")
            assert (admission.requests, admission.body_bytes) == before
    assert (admission.requests, admission.body_bytes) == (0, 0)


def test_who_was_refused_may_come_again(admission: Admission) -> None:
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(admission.enter(0))
        with pytest.raises(TooManyRequests) as full, admission.enter(0):
            pass
    assert full.value.retry_after is not None

    with admission.enter(0):
        assert admission.requests == 1


def test_a_large_body_is_the_clients_to_mend(admission: Admission) -> None:
    with pytest.raises(BodyTooLarge, match="101 bytes, 100 are allowed") as large:
        admission.enter(MAX_BODY + 1).__enter__()

    assert (large.value.field, large.value.retry_after) == ("body", None)


def test_after_closing_nobody_comes_in_and_those_inside_stay(admission: Admission) -> None:
    admission.check_open()
    with admission.enter(1):
        admission.close()
        with pytest.raises(Draining):
            admission.check_open()
        with pytest.raises(Draining), admission.enter(0):
            pass
        assert admission.requests == 1
    assert admission.requests == 0
