"""Which key is next: the machine as a table, and held against a model by a random walk."""

import random
from collections import Counter

import pytest

from omnistage_operator.control.work_queue import WorkQueue

State = tuple[int, int, int]


def state(queue: WorkQueue[str]) -> State:
    """Keys that wait, are delayed, are in work."""
    return queue.depth, queue.delayed, queue.working


def queue_in(place: str) -> WorkQueue[str]:
    """A queue that knows one key, `k`, in this place."""
    queue: WorkQueue[str] = WorkQueue()
    if place == "delayed":
        queue.add_after("k", 10, now=0)
    elif place != "nowhere":
        queue.add("k", now=0)
    if place.startswith("working"):
        queue.take(now=0)
    if place == "working and due":
        queue.add("k", now=0)
    return queue


@pytest.mark.parametrize(
    ("place", "step", "expected"),
    [
        ("nowhere", "add", (1, 0, 0)),
        ("nowhere", "add_after", (0, 1, 0)),
        ("nowhere", "take", (0, 0, 0)),
        ("waiting", "add", (1, 0, 0)),
        ("waiting", "add_after", (1, 1, 0)),
        ("waiting", "take", (0, 0, 1)),
        ("delayed", "add", (1, 0, 0)),
        ("delayed", "add_after", (0, 1, 0)),
        ("delayed", "take", (0, 1, 0)),
        ("working", "add", (0, 0, 1)),
        ("working", "add_after", (0, 1, 1)),
        ("working", "take", (0, 0, 1)),
        ("working", "done", (0, 0, 0)),
        ("working and due", "add", (0, 0, 1)),
        ("working and due", "take", (0, 0, 1)),
        ("working and due", "done", (1, 0, 0)),
    ],
)
def test_each_step_leads_where_the_table_says(place: str, step: str, expected: State) -> None:
    queue = queue_in(place)

    match step:
        case "add":
            queue.add("k", now=1)
        case "add_after":
            queue.add_after("k", 5, now=1)
        case "take":
            queue.take(now=1)
        case _:
            queue.done("k", now=1)

    assert state(queue) == expected


def test_keys_come_in_the_order_in_which_they_were_added() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "a", "c"):
        queue.add(key, now=0)

    assert [taken[0] for _ in range(3) if (taken := queue.take(now=0))] == ["a", "b", "c"]


def test_delays_end_in_order_and_the_earliest_wish_counts() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("late", 9, now=0)
    queue.add_after("soon", 5, now=0)
    queue.add_after("late", 3, now=0)
    queue.add_after("soon", 7, now=0)

    assert queue.next_due() == 3
    queue.wake(now=4)
    assert queue.take(now=4) == ("late", 0)
    assert queue.next_due() == 5
    queue.wake(now=100)

    assert queue.take(now=100) == ("soon", 0)
    assert queue.next_due() is None


def test_taking_a_key_drops_its_delay() -> None:
    queue = queue_in("waiting")
    queue.add_after("k", 5, now=0)
    queue.take(now=1)
    queue.done("k", now=1)

    queue.wake(now=100)

    assert state(queue) == (0, 0, 0)


def test_a_key_says_how_long_it_waited_and_was_worked_on() -> None:
    queue = queue_in("waiting")

    assert queue.take(now=3) == ("k", 3)
    assert queue.unfinished(now=5) == (2, 2)
    assert queue.done("k", now=7) == 4
    assert queue.unfinished(now=8) == (0, 0)


class Model:
    """What is due, said as simply as it can be."""

    def __init__(self) -> None:
        self.due: set[int] = set()
        self.at: dict[int, float] = {}
        self.working: set[int] = set()

    def wake(self, now: float) -> None:
        """Delays end."""
        for key, at in list(self.at.items()):
            if at <= now:
                del self.at[key]
                self.due.add(key)

    def add(self, key: int) -> None:
        """Due now."""
        self.due.add(key)
        if key not in self.working:
            self.at.pop(key, None)

    def add_after(self, key: int, at: float) -> None:
        """Due then."""
        self.at[key] = min(at, self.at.get(key, at))


@pytest.mark.parametrize("seed", range(20))
def test_a_random_walk_never_parts_from_the_model(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    queue: WorkQueue[int] = WorkQueue()
    model = Model()
    now = 0.0
    taken: Counter[int] = Counter()
    for _ in range(3000):
        now += chance.random()
        key = chance.randrange(8)
        queue.wake(now)
        model.wake(now)
        match chance.randrange(5):
            case 0:
                queue.add(key, now)
                model.add(key)
            case 1:
                delay = chance.uniform(0.1, 4)
                queue.add_after(key, delay, now)
                model.add_after(key, now + delay)
            case 2 | 3:
                found = queue.take(now)
                ready = model.due - model.working
                assert (found is None) == (not ready)
                if found is not None:
                    assert found[0] in ready
                    taken[found[0]] += 1
                    model.working.add(found[0])
                    model.due.discard(found[0])
                    model.at.pop(found[0], None)
            case _ if model.working:
                finished = chance.choice(sorted(model.working))
                queue.done(finished, now)
                model.working.discard(finished)
        assert queue.working == len(model.working)
        assert queue.depth == len(model.due - model.working)
    assert set(taken) == set(range(8))
