"""The table in which outlets and their consumers meet, entry by entry."""

import pytest

from omnistage_common.errors import EngineFailed, InvalidRequest, OmnistageError, TooManyRequests
from omnistage_common.ids import StreamToken
from omnistage_stage.service.outlets import TRANSITIONS, OutletEvent, OutletState, OutletTable

TOKEN = StreamToken("token")
WHY = EngineFailed("it broke")
Table = OutletTable[str, str]

PATHS: dict[OutletState | None, tuple[OutletEvent, ...]] = {
    None: (),
    OutletState.AWAITED: (OutletEvent.CLAIM,),
    OutletState.OFFERED: (OutletEvent.OFFER,),
    OutletState.TAKEN: (OutletEvent.OFFER, OutletEvent.CLAIM),
    OutletState.CLOSED: (OutletEvent.OFFER, OutletEvent.CLAIM, OutletEvent.LEAVE),
    OutletState.LOST: (OutletEvent.OFFER, OutletEvent.WITHDRAW),
}
"""How to get there."""


def happens(table: Table, event: OutletEvent) -> str | None:
    """One step of producer or consumer; whom it meets."""
    if event is OutletEvent.OFFER:
        return table.offer(TOKEN, "producer")
    if event is OutletEvent.CLAIM:
        return table.claim(TOKEN, "consumer")
    if event is OutletEvent.LEAVE:
        table.leave(TOKEN, "consumer")
    else:
        table.withdraw(TOKEN, "producer", WHY)
    return None


def table_at(state: OutletState | None, *, max_waiting: int = 4) -> Table:
    """A table whose one outlet is there."""
    table = Table(max_waiting=max_waiting)
    for event in PATHS[state]:
        happens(table, event)
    assert table.state(TOKEN) is state
    return table


@pytest.mark.parametrize("event", OutletEvent)
@pytest.mark.parametrize("state", [None, *OutletState])
def test_every_event_in_every_state(state: OutletState | None, event: OutletEvent) -> None:
    table = table_at(state)
    refused: OmnistageError | None = None

    try:
        happens(table, event)
    except (InvalidRequest, EngineFailed) as error:
        refused = error

    asks = event in {OutletEvent.OFFER, OutletEvent.CLAIM}
    known = (state, event) in TRANSITIONS
    told = WHY if (state, event) == (OutletState.LOST, OutletEvent.CLAIM) else None
    assert refused is told or (isinstance(refused, InvalidRequest) and asks and not known)
    assert table.state(TOKEN) is (TRANSITIONS[state, event] if known else state)
    assert len(table) == (table.state(TOKEN) not in {None, OutletState.LOST})


@pytest.mark.parametrize(
    "order",
    [(OutletEvent.OFFER, OutletEvent.CLAIM), (OutletEvent.CLAIM, OutletEvent.OFFER)],
    ids=["the request first", "the consumer first"],
)
def test_whoever_comes_second_meets_the_first(order: tuple[OutletEvent, OutletEvent]) -> None:
    table = Table(max_waiting=4)

    assert happens(table, order[0]) is None
    assert happens(table, order[1]) == ("producer" if order[1] is OutletEvent.CLAIM else "consumer")


@pytest.mark.parametrize("state", [OutletState.TAKEN, OutletState.CLOSED])
def test_a_second_consumer_is_refused_and_changes_nothing(state: OutletState) -> None:
    table = table_at(state)

    with pytest.raises(InvalidRequest) as refused:
        table.claim(TOKEN, "another")
    table.leave(TOKEN, "another")

    assert refused.value.field == "token"
    assert table.state(TOKEN) is state


def test_a_second_request_with_the_same_token_is_refused_and_changes_nothing() -> None:
    table = table_at(OutletState.OFFERED)

    with pytest.raises(InvalidRequest):
        table.offer(TOKEN, "another")
    table.withdraw(TOKEN, "another", WHY)

    assert table.claim(TOKEN, "consumer") == "producer"


def test_as_many_wait_as_may() -> None:
    table = Table(max_waiting=2)
    table.claim(StreamToken("a"), "a")
    table.claim(StreamToken("b"), "b")

    with pytest.raises(TooManyRequests):
        table.claim(StreamToken("c"), "c")

    assert len(table) == 2
    table.leave(StreamToken("a"), "a")
    table.claim(StreamToken("c"), "c")
    table.offer(StreamToken("b"), "request")
    table.claim(StreamToken("d"), "d")


def test_a_consumer_that_comes_too_late_is_told_why_unless_too_many_were_lost_since() -> None:
    table = Table(max_waiting=2)
    for token in "abc":
        table.offer(StreamToken(token), "producer")
        table.withdraw(StreamToken(token), "producer", WHY)

    assert table.claim(StreamToken("a"), "consumer") is None, "forgotten: it waits"
    for token in "bc":
        with pytest.raises(EngineFailed):
            table.claim(StreamToken(token), "consumer")
    assert len(table) == 1
    assert table.claim(StreamToken("b"), "consumer") is None, "told once"


def test_an_outlet_that_is_offered_takes_a_consumer_however_many_wait() -> None:
    table = Table(max_waiting=0)
    table.offer(TOKEN, "producer")

    assert table.claim(TOKEN, "consumer") == "producer"
