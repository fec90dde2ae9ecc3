"""The table of the link protocol, entry by entry, at both ends."""

from collections.abc import Callable
from enum import Enum

import pytest

from fakes.frames import data, end, open_frame, reference, subscribe_frame, text_output
from omnistage_common.errors import EngineFailed, ProtocolViolation
from omnistage_common.ids import HostId, Incarnation, RequestNumber
from omnistage_common.links.frames import (
    Cancel,
    Credit,
    Error,
    FinishReason,
    Frame,
    FromOpener,
    FromReplica,
    Phase,
    Progress,
    Release,
    Status,
    Usage,
)
from omnistage_common.links.protocol import Acceptor, Opener, RequestState

ONE = RequestNumber(1)
CLOSED = None
"""What `state` says of a request that is forgotten."""


class Before(Enum):
    """Where request 1 is before the step."""

    NEVER = "never opened"
    OPEN = "open"
    HELD = "held"
    CLOSED = "closed"


class Verdict(Enum):
    """What an end makes of a frame."""

    TAKEN = "taken"
    IGNORED = "ignored"
    REFUSED = "refused"


TAKEN, IGNORED, REFUSED = Verdict
OPEN, HELD = RequestState


def acceptor_at(state: Before) -> Acceptor:
    """A replica's end whose request 1 is there."""
    acceptor = Acceptor()
    if state is Before.NEVER:
        return acceptor
    acceptor.receive(open_frame(1, credit=2))
    if state is Before.HELD:
        acceptor.data(ONE, [reference()])
    if state in {Before.HELD, Before.CLOSED}:
        acceptor.end(ONE, FinishReason.STOP, Usage())
    return acceptor


def opener_at(state: Before) -> Opener:
    """An opener whose request 1 is there."""
    opener = Opener()
    if state is Before.NEVER:
        return opener
    opener.open(open_frame(1, credit=2))
    if state is Before.HELD:
        opener.receive(data(1, 0, reference()))
        opener.receive(end(1, data_frames=1))
    if state is Before.CLOSED:
        opener.receive(end(1))
    return opener


def verdict_of(receive: Callable[[], bool]) -> Verdict:
    """What came of giving a frame to an end."""
    try:
        return TAKEN if receive() else IGNORED
    except ProtocolViolation:
        return REFUSED


OPEN_AGAIN = open_frame(1)
SUBSCRIBE = subscribe_frame(1, "token", "life")
CREDIT = Credit(request=ONE, frames=1)
CANCEL = Cancel(request=ONE, reason="test")
RELEASE = Release(request=ONE)
DATA = data(1, 0, text_output())
DATA_WITH_TENSOR = data(1, 0, text_output(), reference())
END = end(1)
ERROR = Error(request=ONE, error=EngineFailed("broke"))
PROGRESS = Progress(request=ONE, done=1, total=2)
STATUS = Status(phase=Phase.READY, message="", incarnation=Incarnation("life"), host=HostId("host"))


@pytest.mark.parametrize(
    ("before", "frame", "verdict", "after"),
    [
        (Before.NEVER, OPEN_AGAIN, TAKEN, OPEN),
        (Before.NEVER, SUBSCRIBE, TAKEN, OPEN),
        (Before.NEVER, CREDIT, REFUSED, CLOSED),
        (Before.NEVER, CANCEL, REFUSED, CLOSED),
        (Before.NEVER, RELEASE, REFUSED, CLOSED),
        (Before.OPEN, OPEN_AGAIN, REFUSED, OPEN),
        (Before.OPEN, SUBSCRIBE, REFUSED, OPEN),
        (Before.OPEN, CREDIT, TAKEN, OPEN),
        (Before.OPEN, CANCEL, TAKEN, CLOSED),
        (Before.OPEN, RELEASE, REFUSED, OPEN),
        (Before.HELD, OPEN_AGAIN, REFUSED, HELD),
        (Before.HELD, SUBSCRIBE, REFUSED, HELD),
        (Before.HELD, CREDIT, TAKEN, HELD),
        (Before.HELD, CANCEL, TAKEN, CLOSED),
        (Before.HELD, RELEASE, TAKEN, CLOSED),
        (Before.CLOSED, OPEN_AGAIN, REFUSED, CLOSED),
        (Before.CLOSED, SUBSCRIBE, REFUSED, CLOSED),
        (Before.CLOSED, CREDIT, IGNORED, CLOSED),
        (Before.CLOSED, CANCEL, IGNORED, CLOSED),
        (Before.CLOSED, RELEASE, IGNORED, CLOSED),
    ],
)
def test_what_a_replica_makes_of_a_frame(
    before: Before, frame: FromOpener, verdict: Verdict, after: RequestState | None
) -> None:
    acceptor = acceptor_at(before)

    assert verdict_of(lambda: acceptor.receive(frame)) is verdict
    assert acceptor.state(ONE) is after


@pytest.mark.parametrize(
    ("before", "frame", "verdict", "after"),
    [
        (Before.NEVER, PROGRESS, REFUSED, CLOSED),
        (Before.NEVER, DATA, REFUSED, CLOSED),
        (Before.NEVER, END, REFUSED, CLOSED),
        (Before.NEVER, ERROR, REFUSED, CLOSED),
        (Before.OPEN, PROGRESS, TAKEN, OPEN),
        (Before.OPEN, DATA, TAKEN, OPEN),
        (Before.OPEN, DATA_WITH_TENSOR, TAKEN, OPEN),
        (Before.OPEN, END, TAKEN, CLOSED),
        (Before.OPEN, ERROR, TAKEN, CLOSED),
        (Before.HELD, PROGRESS, REFUSED, HELD),
        (Before.HELD, DATA, REFUSED, HELD),
        (Before.HELD, END, REFUSED, HELD),
        (Before.HELD, ERROR, REFUSED, HELD),
        (Before.CLOSED, PROGRESS, IGNORED, CLOSED),
        (Before.CLOSED, DATA, IGNORED, CLOSED),
        (Before.CLOSED, END, IGNORED, CLOSED),
        (Before.CLOSED, ERROR, IGNORED, CLOSED),
    ],
)
def test_what_an_opener_makes_of_a_frame(
    before: Before, frame: FromReplica, verdict: Verdict, after: RequestState | None
) -> None:
    opener = opener_at(before)

    assert verdict_of(lambda: opener.receive(frame)) is verdict
    assert opener.state(ONE) is after


@pytest.mark.parametrize("before", Before)
def test_a_status_is_welcome_at_any_time(before: Before) -> None:
    opener = opener_at(before)
    state = opener.state(ONE)

    assert opener.receive(STATUS)
    assert opener.state(ONE) is state


Step = Callable[[Acceptor], Frame | None]


def send_data(acceptor: Acceptor) -> Frame | None:
    return acceptor.data(ONE, [text_output()])


def send_end(acceptor: Acceptor) -> Frame | None:
    return acceptor.end(ONE, FinishReason.STOP, Usage())


def send_error(acceptor: Acceptor) -> Frame | None:
    return acceptor.fail(ONE, EngineFailed("broke"))


@pytest.mark.parametrize(
    ("before", "sent"),
    [
        (Before.NEVER, None),
        (Before.OPEN, PROGRESS),
        (Before.HELD, None),
        (Before.CLOSED, None),
    ],
)
def test_progress_is_sent_while_a_request_is_open_and_no_longer(
    before: Before, sent: Progress | None
) -> None:
    acceptor = acceptor_at(before)
    credit = acceptor.credit(ONE)

    assert acceptor.progress(ONE, 1, 2) == sent
    assert acceptor.credit(ONE) == credit, "it needs none"


@pytest.mark.parametrize("step", [send_data, send_end, send_error])
def test_a_replica_sends_nothing_about_a_closed_request(step: Step) -> None:
    assert step(acceptor_at(Before.CLOSED)) is None


@pytest.mark.parametrize("step", [send_data, send_end, send_error])
def test_a_replica_cannot_send_anything_after_its_end(step: Step) -> None:
    acceptor = acceptor_at(Before.HELD)

    with pytest.raises(ProtocolViolation):
        step(acceptor)

    assert acceptor.state(ONE) is HELD


@pytest.mark.parametrize(
    ("before", "sent", "after"),
    [
        (Before.NEVER, None, CLOSED),
        (Before.OPEN, CREDIT, OPEN),
        (Before.HELD, None, HELD),
        (Before.CLOSED, None, CLOSED),
    ],
)
def test_an_opener_credits_what_is_open(
    before: Before, sent: Frame | None, after: RequestState | None
) -> None:
    opener = opener_at(before)

    assert opener.credit(ONE, 1) == sent
    assert opener.state(ONE) is after


@pytest.mark.parametrize(
    ("before", "sent"),
    [
        (Before.NEVER, None),
        (Before.OPEN, CANCEL),
        (Before.HELD, CANCEL),
        (Before.CLOSED, None),
    ],
)
def test_an_opener_cancels_what_is_not_closed(before: Before, sent: Frame | None) -> None:
    opener = opener_at(before)

    assert opener.cancel(ONE, "test") == sent
    assert opener.state(ONE) is CLOSED


@pytest.mark.parametrize(
    ("before", "sent", "after"),
    [
        (Before.NEVER, None, CLOSED),
        (Before.OPEN, None, OPEN),
        (Before.HELD, RELEASE, CLOSED),
        (Before.CLOSED, None, CLOSED),
    ],
)
def test_an_opener_releases_what_is_held(
    before: Before, sent: Frame | None, after: RequestState | None
) -> None:
    opener = opener_at(before)

    assert opener.release(ONE) == sent
    assert opener.state(ONE) is after


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("before", Before)
def test_numbers_that_were_never_opened_are_refused_at_both_ends(
    before: Before, number: int
) -> None:
    stranger = RequestNumber(number)

    with pytest.raises(ProtocolViolation, match="never opened"):
        acceptor_at(before).receive(Cancel(request=stranger, reason="test"))
    with pytest.raises(ProtocolViolation, match="never opened"):
        opener_at(before).receive(end(number))


def test_an_opener_numbers_requests_one_by_one() -> None:
    opener = opener_at(Before.CLOSED)

    assert opener.next_number() == 2
    with pytest.raises(ProtocolViolation, match="request number 3 after 1"):
        opener.open(open_frame(3))
    with pytest.raises(ProtocolViolation, match="request number 1 after 1"):
        opener.open(open_frame(1))


@pytest.mark.parametrize("number", [0, 4, 5])
def test_numbers_must_rise_at_a_replica(number: int) -> None:
    acceptor = Acceptor()
    acceptor.receive(open_frame(5))

    with pytest.raises(ProtocolViolation, match=f"request number {number} after 5"):
        acceptor.receive(open_frame(number))


@pytest.mark.parametrize("sequence", [0, 2])
def test_a_repeated_or_lost_data_frame_is_noticed(sequence: int) -> None:
    opener = opener_at(Before.OPEN)
    opener.receive(data(1, 0))

    with pytest.raises(ProtocolViolation, match=f"Data {sequence} of request 1 came as 1"):
        opener.receive(data(1, sequence))


@pytest.mark.parametrize("said", [0, 2])
def test_an_end_that_counts_other_data_frames_is_noticed(said: int) -> None:
    opener = opener_at(Before.OPEN)
    opener.receive(data(1, 0))

    with pytest.raises(ProtocolViolation, match=f"ended after {said} Data frames, 1 came"):
        opener.receive(end(1, data_frames=said))


def test_data_frames_use_up_credit_at_both_ends() -> None:
    acceptor, opener = acceptor_at(Before.OPEN), opener_at(Before.OPEN)
    for left in (1, 0):
        frame = acceptor.data(ONE, [text_output()])
        assert frame is not None
        assert opener.receive(frame)
        assert acceptor.credit(ONE) == left

    with pytest.raises(ProtocolViolation, match="without credit"):
        acceptor.data(ONE, [text_output()])
    with pytest.raises(ProtocolViolation, match="without credit"):
        opener.receive(data(1, 2))


def test_credit_lets_data_flow_again() -> None:
    acceptor, opener = acceptor_at(Before.OPEN), opener_at(Before.OPEN)
    for _ in range(2):
        acceptor.data(ONE, [])
    granted = opener.credit(ONE, 3)
    assert granted is not None

    acceptor.receive(granted)

    assert acceptor.credit(ONE) == 3


@pytest.mark.parametrize("before", [Before.NEVER, Before.HELD, Before.CLOSED])
def test_only_an_open_request_has_credit(before: Before) -> None:
    assert acceptor_at(before).credit(ONE) == 0


def test_a_reference_in_any_data_frame_makes_both_ends_hold_the_request() -> None:
    acceptor, opener = acceptor_at(Before.OPEN), opener_at(Before.OPEN)
    frames = [
        acceptor.data(ONE, [text_output(), reference()]),
        acceptor.data(ONE, [text_output()]),
        acceptor.end(ONE, FinishReason.STOP, Usage()),
    ]

    for frame in frames:
        assert frame is not None
        assert opener.receive(frame)

    assert acceptor.state(ONE) is HELD
    assert opener.state(ONE) is HELD


def test_an_error_closes_a_request_that_sent_references() -> None:
    acceptor, opener = acceptor_at(Before.OPEN), opener_at(Before.OPEN)
    sent = [acceptor.data(ONE, [reference()]), acceptor.fail(ONE, EngineFailed("broke"))]

    for frame in sent:
        assert frame is not None
        opener.receive(frame)

    assert len(acceptor) == len(opener) == 0


def test_a_broken_link_names_what_was_not_closed_and_forgets_it() -> None:
    opener = Opener()
    for number in (1, 2, 3):
        opener.open(open_frame(number, credit=1))
    opener.receive(end(1))
    opener.receive(data(3, 0, reference()))
    opener.receive(end(3, data_frames=1))

    assert opener.close() == (2, 3)
    assert len(opener) == 0
    assert opener.close() == ()
    assert not opener.receive(end(2))
