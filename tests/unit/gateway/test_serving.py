"""Which revision takes new requests: the table of the machine, and a long walk through it."""

import random

import pytest

from omnistage_common.ids import Revision
from omnistage_gateway.pipelines.serving import MAX_REVISIONS, Acknowledgement, Serving

OLD, NEW, OTHER = Revision("old"), Revision("new"), Revision("other")


def serving_of(
    before: Revision | None,
    current: Revision | None,
    routable: dict[Revision, bool],
    draining: frozenset[Revision] = frozenset(),
) -> Revision | None:
    """What serves after the operator has spoken, at a gateway that served something before."""
    machine = Serving()
    if before is not None:
        machine.learn(before, routable=True)
        machine.direct(before)
        assert machine.serving == before
    for revision, reached in routable.items():
        machine.learn(revision, routable=reached)
    machine.direct(current, draining=draining)
    return machine.serving


@pytest.mark.parametrize(
    ("before", "current", "routable", "draining", "serves"),
    [
        # The first revision.
        (None, None, {}, set(), None),
        (None, NEW, {}, set(), None),
        (None, NEW, {NEW: False}, set(), None),
        (None, NEW, {NEW: True}, set(), NEW),
        (None, None, {NEW: True}, set(), None),
        # A new one.
        (OLD, NEW, {}, set(), OLD),
        (OLD, NEW, {NEW: False}, set(), OLD),
        (OLD, NEW, {NEW: True}, set(), NEW),
        (OLD, NEW, {OLD: False, NEW: False}, set(), OLD),
        (OLD, OLD, {NEW: True}, set(), OLD),
        (OLD, None, {NEW: True}, set(), OLD),
        # What was served loses its replicas for a while.
        (OLD, OLD, {OLD: False}, set(), OLD),
        # In place: the old one drains before the new one is there.
        (OLD, NEW, {NEW: False}, {OLD}, None),
        (OLD, NEW, {NEW: True}, {OLD}, NEW),
        (OLD, NEW, {NEW: False}, {OTHER}, OLD),
        # What is current serves whatever else is said of it.
        (OLD, OLD, {}, {OLD}, OLD),
        (OLD, OLD, {OLD: False}, {OLD}, OLD),
    ],
)
def test_the_table(
    before: Revision | None,
    current: Revision | None,
    routable: dict[Revision, bool],
    draining: set[Revision],
    serves: Revision | None,
) -> None:
    assert serving_of(before, current, routable, frozenset(draining)) == serves


def test_a_plan_that_goes_serves_no_more() -> None:
    machine = Serving()
    machine.learn(OLD, routable=True)
    machine.direct(OLD)

    machine.forget(OLD)

    assert machine.serving is None
    machine.learn(OLD, routable=True)
    assert machine.serving == OLD


def test_current_serves_as_soon_as_it_is_routable() -> None:
    machine = Serving()
    machine.learn(OLD, routable=True)
    machine.direct(OLD)
    machine.direct(NEW)
    machine.learn(NEW, routable=False)
    assert machine.serving == OLD

    machine.learn(NEW, routable=True)

    assert machine.serving == NEW


def test_what_is_said_names_turn_serving_routable_and_what_is_left() -> None:
    machine = Serving()
    machine.learn(OLD, routable=True)
    machine.direct(OLD, turn=1)
    machine.occupy(OLD, busy=True)
    assert machine.acknowledgement == Acknowledgement(turn=1, serving=OLD, routable=(OLD,))

    machine.learn(NEW, routable=True)
    machine.direct(NEW, turn=2)

    assert machine.acknowledgement == Acknowledgement(
        turn=2, serving=NEW, routable=(NEW, OLD), in_use=(OLD,)
    )
    machine.forget(OLD)
    assert machine.acknowledgement == Acknowledgement(
        turn=2, serving=NEW, routable=(NEW,), in_use=(OLD,)
    )
    machine.occupy(OLD, busy=False)
    assert machine.acknowledgement.in_use == ()


def test_what_is_said_is_bounded_and_keeps_what_matters() -> None:
    machine = Serving()
    for index in range(2 * MAX_REVISIONS):
        machine.learn(Revision(f"a{index:03}"), routable=True)
    machine.learn(Revision("z"), routable=True)
    machine.direct(Revision("z"))

    said = machine.acknowledgement

    assert len(said.routable) == MAX_REVISIONS
    assert "z" in said.routable
    assert list(said.routable) == sorted(said.routable)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_in_whatever_order(seed: int) -> None:
    choice = random.Random(seed)  # noqa: S311 - a test's choice
    machine = Serving()
    known: dict[Revision, bool] = {}
    busy: set[Revision] = set()
    current: Revision | None = None
    draining: frozenset[Revision] = frozenset()
    for _ in range(500):
        before = machine.serving
        revision = choice.choice((OLD, NEW, OTHER))
        match choice.choice(("learn", "forget", "direct", "occupy")):
            case "learn":
                known[revision] = choice.random() < 0.7
                machine.learn(revision, routable=known[revision])
            case "forget":
                known.pop(revision, None)
                machine.forget(revision)
            case "direct":
                current = choice.choice((revision, revision, None))
                draining = frozenset(choice.sample((OLD, NEW, OTHER), choice.randrange(3)))
                machine.direct(current, draining=draining)
            case _:
                busy ^= {revision}
                machine.occupy(revision, busy=revision in busy)

        serving, said = machine.serving, machine.acknowledgement
        assert serving is None or serving in known
        assert serving in {before, current, None}, "it went neither forward nor stayed"
        if current is not None and known.get(current):
            assert serving == current, "current is routable and does not serve"
        if serving != current:
            assert serving not in draining, "a revision that drains takes requests"
        if serving is None and before is not None:
            assert before not in known or before in draining, "it stopped without need"
        assert said.serving == serving
        assert set(said.routable) == {each for each, reached in known.items() if reached}
        assert set(said.in_use) == busy - {serving}
