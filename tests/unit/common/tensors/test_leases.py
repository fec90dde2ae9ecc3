"""Leases: they end once, for whatever reason comes first, and memory waits for its writer."""

import random
from itertools import product

import pytest

from omnistage_common.ids import LeaseId, TensorToken
from omnistage_common.tensors.leases import (
    TRANSITIONS,
    Lease,
    LeaseEvent,
    LeaseState,
    LeaseStatistics,
    LeaseTable,
)

TOKEN = TensorToken("0f" * 16)
FILLING, HELD, ABANDONED, ENDED = LeaseState
SEAL, END = LeaseEvent


def grant(
    table: LeaseTable, owner: str = "a", *, deadline: float = 10.0, sealed: bool = True
) -> Lease:
    lease = table.grant(owner=owner, offset=0, length=1, deadline=deadline, token=TOKEN)
    return table.seal(lease.id) if sealed else lease


@pytest.mark.parametrize(
    ("state", "event", "after"),
    [
        (FILLING, SEAL, HELD),
        (FILLING, END, ABANDONED),
        (HELD, SEAL, None),
        (HELD, END, ENDED),
        (ABANDONED, SEAL, ENDED),
        (ABANDONED, END, ABANDONED),
        (ENDED, SEAL, None),
        (ENDED, END, None),
    ],
)
def test_every_event_in_every_state(
    state: LeaseState, event: LeaseEvent, after: LeaseState | None
) -> None:
    assert TRANSITIONS.get((state, event)) is after


def test_every_row_is_tested() -> None:
    assert set(TRANSITIONS) < set(product(LeaseState, LeaseEvent))


def test_a_lease_is_held_once_its_bytes_are_written() -> None:
    table = LeaseTable()
    lease = grant(table, sealed=False)
    assert lease.state is FILLING

    assert table.seal(lease.id).state is HELD
    assert table.statistics() == LeaseStatistics(filling=0, held=1, abandoned=0)


def test_releasing_twice_ends_it_once() -> None:
    table = LeaseTable()
    lease = grant(table)

    assert [x.state for x in table.release([lease.id])] == [ENDED]
    assert table.release([lease.id]) == []
    assert table.get(lease.id) is None


def test_releasing_what_never_was_is_passed_over() -> None:
    assert LeaseTable().release([LeaseId(7)]) == []


def test_the_memory_of_a_lease_that_ends_while_it_is_written_waits_for_the_writer() -> None:
    table = LeaseTable()
    lease = grant(table, sealed=False)

    assert [x.state for x in table.release_owner("a")] == [ABANDONED]
    assert table.release([lease.id]) == []
    assert table.idle
    assert table.statistics() == LeaseStatistics(filling=0, held=0, abandoned=1)

    assert table.seal(lease.id).state is ENDED
    assert table.get(lease.id) is None


def test_sealing_twice_is_a_mistake() -> None:
    table = LeaseTable()
    lease = grant(table)

    with pytest.raises(KeyError):
        table.seal(lease.id)


def test_an_owner_takes_its_leases_along_and_nobody_elses() -> None:
    table = LeaseTable()
    mine = [grant(table, "mine").id for _ in range(3)]
    other = grant(table, "other")

    assert [x.id for x in table.release_owner("mine")] == mine
    assert table.release_owner("mine") == []
    assert table.get(other.id) is not None


def test_deadlines_end_leases_and_the_next_one_is_known() -> None:
    table = LeaseTable()
    late = grant(table, deadline=3.0)
    early = grant(table, deadline=1.0)
    writing = grant(table, deadline=2.0, sealed=False)
    assert table.next_deadline == 1.0

    assert table.expire(0.5) == []
    assert [x.id for x in table.expire(1.0)] == [early.id]
    assert table.next_deadline == 2.0
    assert {x.id: x.state for x in table.expire(3.0)} == {writing.id: ABANDONED, late.id: ENDED}
    assert table.next_deadline is None


def test_ids_are_never_used_again() -> None:
    table = LeaseTable()
    first = grant(table)
    table.release([first.id])

    assert grant(table).id > first.id > 0


@pytest.mark.parametrize("seed", range(10))
def test_every_lease_ends_exactly_once_in_any_order_of_events(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - reproducible
    table = LeaseTable()
    unsealed: list[LeaseId] = []
    known: list[LeaseId] = []
    ended: list[LeaseId] = []

    def note(leases: list[Lease]) -> None:
        ended.extend(lease.id for lease in leases if lease.state is ENDED)

    for now in range(400):
        owner, deadline = chance.choice("abc"), now + chance.uniform(0, 50)
        match chance.randrange(5):
            case 0 | 1:
                lease = table.grant(
                    owner=owner, offset=now, length=1, deadline=deadline, token=TOKEN
                )
                unsealed.append(lease.id)
                known.append(lease.id)
            case 2 if unsealed:
                note([table.seal(unsealed.pop(chance.randrange(len(unsealed))))])
            case 3 if known:
                note(table.release(chance.choices(known, k=2)))
            case _:
                note(table.release_owner(owner) if chance.random() < 0.2 else table.expire(now))

    note(table.release_all())
    for lease_id in unsealed:
        note([table.seal(lease_id)])
    assert sorted(ended) == known
    assert table.idle
    assert table.statistics() == LeaseStatistics(filling=0, held=0, abandoned=0)
