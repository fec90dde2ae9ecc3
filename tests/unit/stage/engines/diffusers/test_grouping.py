"""Who waits for company, for how long, and who goes first."""

from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage_stage.engines.diffusers.grouping import Grouping


def grouping(max_size: int = 2, max_wait: float = 1.0) -> Grouping[str]:
    """One whose times are easy to follow."""
    return Grouping(max_size=max_size, max_wait=max_wait)


def test_nobody_waits_at_first() -> None:
    empty = grouping()

    assert empty.take(0) == ()
    assert empty.due() is None
    assert len(empty) == 0


def test_one_alone_waits_as_long_as_it_must_and_then_starts_alone() -> None:
    waiting = grouping()
    waiting.join(1, "a", 5.0)

    assert waiting.due() == 6.0
    assert waiting.take(5.9) == ()
    assert waiting.take(6.0) == (1,)
    assert waiting.due() is None


def test_a_full_group_starts_at_once() -> None:
    waiting = grouping()
    waiting.join(1, "a", 0)
    waiting.join(2, "a", 0.1)

    assert waiting.take(0.1) == (1, 2)


def test_where_a_group_is_one_nobody_waits() -> None:
    waiting = grouping(max_size=1)
    waiting.join(1, "a", 0)
    waiting.join(2, "a", 0)

    assert waiting.take(0) == (1,)
    assert waiting.take(0) == (2,)


def test_only_those_with_the_same_key_go_together() -> None:
    waiting = grouping()
    for ticket, key in enumerate("abab"):
        waiting.join(ticket, key, 0)

    assert waiting.take(0) == (0, 2)
    assert waiting.take(0) == (1, 3)


def test_more_than_fit_go_in_the_order_in_which_they_came() -> None:
    waiting = grouping()
    for ticket in range(5):
        waiting.join(ticket, "a", 0)

    assert [waiting.take(0), waiting.take(0), waiting.take(0)] == [(0, 1), (2, 3), ()]
    assert waiting.take(1.0) == (4,)


def test_of_those_that_may_start_the_oldest_does() -> None:
    waiting = grouping()
    waiting.join(1, "lonely", 0)
    waiting.join(2, "pair", 0.5)
    waiting.join(3, "pair", 0.6)

    assert waiting.take(0.6) == (2, 3)
    waiting.join(4, "pair", 0.7)
    waiting.join(5, "pair", 0.8)
    assert waiting.take(1.0) == (1,)


def test_one_that_leaves_is_not_taken_and_holds_nobody_up() -> None:
    waiting = grouping()
    waiting.join(1, "a", 0)
    waiting.join(2, "a", 0.5)
    waiting.leave(1)
    waiting.leave(1)
    waiting.leave(99)

    assert waiting.due() == 1.5
    assert waiting.take(1.0) == ()
    assert waiting.take(1.5) == (2,)


EVENTS = st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40)


@settings(max_examples=60, deadline=None)
@given(events=EVENTS, max_size=st.integers(1, 4))
def test_everybody_is_taken_once_with_its_like_and_in_time(
    events: list[tuple[str, bool]], max_size: int
) -> None:
    waiting: Grouping[str] = Grouping(max_size=max_size, max_wait=3.0)
    keys: dict[int, str] = {}
    taken: list[int] = []
    left: set[int] = set()
    for now, (key, leaves) in enumerate(events):
        keys[now] = key
        waiting.join(now, key, now)
        if leaves:
            waiting.leave(now)
            left.add(now)
        while group := waiting.take(now):
            assert len({keys[ticket] for ticket in group}) == 1
            assert len(group) <= max_size
            taken.extend(group)
        assert all(now - ticket < 3 for ticket in keys if ticket not in {*taken, *left})
    while group := waiting.take(len(events) + 3):
        taken.extend(group)

    assert sorted(taken) == sorted(keys.keys() - left)
    assert len(waiting) == 0
