"""The gateway's link against a replica over real gRPC: what it sends, hears, and survives."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import grpc
import pytest

from fakes.fake_replica import FakeReplica, fake_replica, status
from fakes.frames import data, end, reference, text_output
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import (
    Draining,
    EngineFailed,
    OmnistageError,
    ProtocolViolation,
    StageUnavailable,
)
from omnistage_common.ids import (
    Incarnation,
    OutputName,
    ReplicaId,
    RequestId,
    RequestNumber,
    StageName,
    StreamToken,
)
from omnistage_common.links.batching import FRAMES_PER_MESSAGE
from omnistage_common.links.frames import (
    Cancel,
    Credit,
    Data,
    Delivery,
    End,
    Error,
    FromReplica,
    Inlet,
    Open,
    Phase,
    Progress,
    Release,
    Subscribe,
)
from omnistage_common.links.replica_link import CREDIT, ReplicaLink
from omnistage_common.payloads import Output, Parameters
from omnistage_gateway.replicas.endpoints import ReplicaEndpoint
from omnistage_protos.stage.v1 import stage_pb2

ENOUGH_S = 20.0


class Caller:
    """A listener that keeps what comes and can be waited for."""

    def __init__(self) -> None:
        self.frames: list[Data | Progress | End | Error] = []
        self._news = asyncio.Event()

    def received(self, frame: Data | Progress | End | Error) -> None:
        """Keeps a frame."""
        self.frames.append(frame)
        self._news.set()

    async def until(self, kind: type[Data | End | Error]) -> Data | Progress | End | Error:
        """The last frame, once it is of that kind."""
        async with asyncio.timeout(ENOUGH_S):
            while not (self.frames and isinstance(self.frames[-1], kind)):
                self._news.clear()
                await self._news.wait()
        return self.frames[-1]

    async def error(self) -> OmnistageError:
        """What ended the request badly."""
        frame = await self.until(Error)
        assert isinstance(frame, Error)
        return frame.error


def new_link(replica: FakeReplica) -> ReplicaLink:
    """A link that nobody keeps open yet."""
    return ReplicaLink(
        ReplicaEndpoint(
            stage=StageName("thinker"),
            replica=ReplicaId("thinker-0"),
            address=f"127.0.0.1:{replica.port}",
        )
    )


@asynccontextmanager
async def linked(replica: FakeReplica) -> AsyncIterator[ReplicaLink]:
    """A running link; nothing of it is left afterwards."""
    before = asyncio.all_tasks()
    link = new_link(replica)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(link.run())
        yield link
        task.cancel()
    assert (link.phase, link.outstanding, len(link._opener)) == (None, 0, 0)
    assert {
        each for each in asyncio.all_tasks() - before if each.get_name().endswith("writer")
    } == (set())


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what only the link knows."""
    async with asyncio.timeout(ENOUGH_S):
        while not condition():  # noqa: ASYNC110 - a link tells nobody of its phase
            await asyncio.sleep(0.001)


@asynccontextmanager
async def ready_link(replica: FakeReplica) -> AsyncIterator[ReplicaLink]:
    """A link whose replica said that it is ready."""
    async with linked(replica) as link:
        await until(lambda: link.phase is Phase.READY)
        yield link


def ask(link: ReplicaLink, *inputs: Output) -> tuple[RequestNumber, Caller]:
    """Opens a request."""
    caller = Caller()
    number = link.open(
        caller,
        request_id=RequestId("request"),
        deadline=Deadline.after(30),
        delivery=Delivery.DELTAS,
        inputs=inputs,
        parameters=Parameters(max_tokens=7),
    )
    return number, caller


async def test_a_request_goes_out_and_its_frames_come_back_in_order() -> None:
    async with fake_replica() as replica, ready_link(replica) as link:
        number, caller = ask(link, text_output("hello"))
        frame = await replica.hears(Open)
        assert frame.request == number
        assert (frame.request_id, frame.credit) == ("request", CREDIT)
        assert frame.parameters.max_tokens == 7
        assert frame.inputs == (text_output("hello"),)
        assert link.outstanding == 1

        replica.say(
            data(number, 0, text_output("a")), data(number, 1, text_output("b")), end(number, 2)
        )

        await caller.until(End)
        assert [type(each) for each in caller.frames] == [Data, Data, End]
        assert link.outstanding == 0


async def test_an_error_of_the_replica_arrives_as_the_same_class() -> None:
    async with fake_replica() as replica, ready_link(replica) as link:
        number, caller = ask(link)
        replica.say(Error(request=number, error=EngineFailed("it broke", field="f")))

        error = await caller.error()

        assert (type(error), error.message, error.field) == (EngineFailed, "it broke", "f")


async def test_credit_cancel_and_release_reach_the_replica() -> None:
    async with fake_replica() as replica, ready_link(replica) as link:
        (first, _), (second, holder) = ask(link), ask(link)
        await replica.hears_opens(2)

        link.grant(first, 16)
        assert await replica.hears(Credit) == Credit(request=first, frames=16)
        link.close(first, "not wanted")
        assert await replica.hears(Cancel) == Cancel(request=first, reason="not wanted")
        replica.say(data(second, 0, reference()), end(second, 1))
        await holder.until(End)
        link.close(second, "done")
        assert await replica.hears(Release) == Release(request=second)
        link.close(second, "done")
        link.grant(second, 1)
        third, _ = ask(link)
        assert (await replica.hears(Open)).request == third


async def test_frames_of_a_closed_request_are_ignored() -> None:
    async with fake_replica() as replica, ready_link(replica) as link:
        gone, nobody = ask(link)
        await replica.hears(Open)
        link.close(gone, "not wanted")
        number, caller = ask(link)

        replica.say(data(gone, 0, text_output()), end(gone, 1), end(number))

        await caller.until(End)
        assert nobody.frames == []


async def test_all_of_one_turn_leaves_in_one_message() -> None:
    async with fake_replica() as replica, ready_link(replica) as link:
        numbers = [ask(link)[0] for _ in range(FRAMES_PER_MESSAGE + 1)]

        opens = await replica.hears_opens(len(numbers))

        assert [frame.request for frame in opens] == numbers
        assert [len(message) for message in replica.messages] == [FRAMES_PER_MESSAGE, 1]


async def test_large_requests_of_one_turn_do_not_break_the_link() -> None:
    """Together they are over what one gRPC message may hold."""
    text = "x" * (24 * 1024 * 1024)
    async with fake_replica() as replica, ready_link(replica) as link:
        callers = [ask(link, text_output(text))[1] for _ in range(3)]

        await replica.hears_opens(3)

        assert link.phase is Phase.READY
        assert [caller.frames for caller in callers] == [[], [], []]


@pytest.mark.parametrize("phase", list(Phase))
async def test_a_link_knows_its_replicas_phase(phase: Phase) -> None:
    async with fake_replica((status(Phase.LOADING),)) as replica, linked(replica) as link:
        assert link.phase is None
        await until(lambda: link.phase is Phase.LOADING)

        replica.say(status(phase))

        await until(lambda: link.phase is phase)
        assert (link.incarnation, link.host) == ("fake", "somewhere")


async def test_a_replica_that_is_not_there_yet_is_found_when_it_comes() -> None:
    async with fake_replica() as replica:
        await replica.stop()
        async with linked(replica) as link:
            await asyncio.sleep(0)
            assert link.phase is None

            await replica.start()

            await until(lambda: link.phase is Phase.READY)


async def break_by_end(replica: FakeReplica) -> None:
    replica.end()


async def break_by_status(replica: FakeReplica) -> None:
    replica.end(grpc.StatusCode.INVALID_ARGUMENT)


async def break_by_cancel(replica: FakeReplica) -> None:
    replica.end(grpc.StatusCode.CANCELLED)


async def break_by_death(replica: FakeReplica) -> None:
    await replica.stop()
    await replica.start()


BREAKS = [break_by_end, break_by_status, break_by_cancel, break_by_death]


@pytest.mark.parametrize("break_link", BREAKS)
async def test_a_broken_link_fails_its_requests_at_once_and_comes_back(
    break_link: Callable[[FakeReplica], asyncio.Future[None]],
) -> None:
    async with fake_replica() as replica, ready_link(replica) as link:
        asked = [ask(link) for _ in range(3)]
        await replica.hears_opens(3)
        begin = time.monotonic()

        await break_link(replica)
        errors = [await caller.error() for _, caller in asked]

        assert time.monotonic() - begin < 1.0
        assert {type(error) for error in errors} == {StageUnavailable}
        assert len({id(error) for error in errors}) == len(errors)
        assert "thinker-0 was lost" in errors[0].message
        await until(lambda: link.phase is Phase.READY)
        number, caller = ask(link)
        assert number > max(each for each, _ in asked)
        assert (await replica.hears(Open)).request == number
        replica.say(end(number))
        await caller.until(End)
        assert len(replica.links) == 2


async def test_a_replica_that_drained_has_not_begun_what_it_was_sent_last() -> None:
    async with fake_replica() as replica, ready_link(replica) as link:
        replica.say(status(Phase.DRAINING))
        _, caller = ask(link)
        replica.end()

        assert isinstance(await caller.error(), Draining)


def frame_bytes(frame: stage_pb2.Frame) -> bytes:
    """A message with one frame of the test's own making."""
    return stage_pb2.LinkResponse(frames=[frame]).SerializeToString()


VIOLATIONS: dict[str, FromReplica | bytes] = {
    "data of a request that was never opened": data(99, 0),
    "data out of order": data(1, 1, text_output()),
    "an end that counts other data": end(1, 5),
    "a frame of request 0": data(0, 0),
    "a frame without a kind": frame_bytes(stage_pb2.Frame(request=1)),
    "a frame that only openers send": frame_bytes(
        stage_pb2.Frame(request=1, cancel=stage_pb2.Cancel())
    ),
    "a status without a phase": frame_bytes(stage_pb2.Frame(status=stage_pb2.Status())),
    "an output without content": frame_bytes(
        stage_pb2.Frame(request=1, data=stage_pb2.Data(outputs=[stage_pb2.Output(name="x")]))
    ),
    "bytes that are no message": b"\xff\xff\xff\xff",
}


@pytest.mark.parametrize("violation", VIOLATIONS.values(), ids=VIOLATIONS)
async def test_a_replica_that_breaks_the_protocol_loses_its_link(
    violation: FromReplica | bytes,
) -> None:
    async with fake_replica() as replica, ready_link(replica) as link:
        _, offended = ask(link)
        _, other = ask(link)
        await replica.hears_opens(2)

        replica.say(violation)

        assert isinstance(await offended.error(), StageUnavailable | ProtocolViolation)
        assert isinstance(await other.error(), StageUnavailable)
        await until(lambda: len(replica.links) == 2 and link.phase is Phase.READY)


@pytest.mark.parametrize(
    "sequences", [(0, 2), (0, 0), (1, 0)], ids=["a gap", "a duplicate", "out of order"]
)
async def test_the_request_whose_data_does_not_come_in_order_learns_why(
    sequences: tuple[int, int],
) -> None:
    async with fake_replica() as replica, ready_link(replica) as link:
        number, caller = ask(link)
        _, other = ask(link)
        await replica.hears_opens(2)

        replica.say(*(data(number, sequence, text_output()) for sequence in sequences))

        error = await caller.error()
        assert isinstance(error, ProtocolViolation)
        assert "thinker-0 broke the protocol" in error.message
        assert isinstance(await other.error(), StageUnavailable)


async def test_an_end_that_counts_other_data_is_told_to_its_request() -> None:
    async with fake_replica() as replica, ready_link(replica) as link:
        number, caller = ask(link)
        await replica.hears(Open)

        replica.say(data(number, 0, text_output()), end(number, 2))

        assert isinstance(await caller.error(), ProtocolViolation)


async def test_data_beyond_its_credit_breaks_the_protocol() -> None:
    async with fake_replica() as replica, ready_link(replica) as link:
        number, caller = ask(link)
        await replica.hears(Open)

        replica.say(*(data(number, sequence, text_output()) for sequence in range(CREDIT + 1)))

        assert isinstance(await caller.error(), ProtocolViolation)
        assert len(caller.frames) == CREDIT + 1


async def test_progress_reaches_the_request() -> None:
    async with fake_replica() as replica, ready_link(replica) as link:
        number, caller = ask(link)
        await replica.hears(Open)

        replica.say(Progress(request=number, done=1, total=4), end(number))

        await caller.until(End)
        assert caller.frames[0] == Progress(request=number, done=1, total=4)


INLET = Inlet(
    token=StreamToken("token"),
    address="somewhere:1",
    incarnation=Incarnation("fake"),
    outputs=(OutputName("text"),),
)


async def test_a_subscription_is_answered_like_a_request() -> None:
    async with fake_replica() as replica, ready_link(replica) as link:
        caller = Caller()
        deadline = Deadline.after(30)
        number = link.subscribe(caller, INLET, deadline)
        frame = await replica.hears(Subscribe)
        assert (frame.token, frame.incarnation, frame.credit) == ("token", "fake", CREDIT)
        assert frame.deadline.remaining() == pytest.approx(deadline.remaining(), abs=1.0)

        replica.say(data(number, 0, text_output("a")), end(number, 1))

        await caller.until(End)
        assert [type(each) for each in caller.frames] == [Data, End]
        assert link.outstanding == 0


async def test_a_link_that_is_kept_once_is_over_when_it_breaks() -> None:
    async with fake_replica() as replica:
        link = new_link(replica)
        keeping = asyncio.create_task(link.run_once())
        _, caller = ask(link)
        await replica.hears(Open)
        assert not link.over

        replica.end()
        await keeping

        assert isinstance(await caller.error(), StageUnavailable)
        assert link.over


async def test_a_link_that_is_kept_once_does_not_wait_for_a_replica_that_is_gone() -> None:
    async with fake_replica() as replica:
        await replica.stop()
        link = new_link(replica)
        _, caller = ask(link)
        begin = time.monotonic()

        await link.run_once()

        assert isinstance(await caller.error(), StageUnavailable)
        assert time.monotonic() - begin < 1.0


@pytest.mark.parametrize(
    "greeting",
    [(data(9, 0),), (status(Phase.READY), data(9, 0))],
    ids=["before it said a word", "after it said that it is ready"],
)
async def test_a_replica_that_breaks_the_protocol_again_and_again_is_left_alone(
    greeting: tuple[FromReplica, ...],
) -> None:
    async with fake_replica(greeting) as replica, linked(replica):
        await until(lambda: len(replica.links) == 5)

        opened = replica.links
        pauses = [later - sooner for sooner, later in pairwise(opened)]
        assert pauses[-1] > 2 * pauses[0]


async def test_when_a_link_is_given_up_its_requests_fail() -> None:
    async with fake_replica() as replica:
        async with ready_link(replica) as link:
            _, caller = ask(link)
            await replica.hears(Open)
            assert caller.frames == []

        assert isinstance(await caller.error(), StageUnavailable)
