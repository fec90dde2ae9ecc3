"""The consumer's side of a stream edge: what an engine iterates, and what the producer hears of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from fakes.fake_replica import FakeReplica, fake_replica
from fakes.frames import data, end, reference, rows, rows_of, tensor, text_output
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import (
    EngineFailed,
    InvalidRequest,
    OmnistageError,
    ProtocolViolation,
    StageUnavailable,
    TensorLost,
)
from omnistage_common.ids import Incarnation, OutputName, StreamToken, new_incarnation, this_host
from omnistage_common.links import wire
from omnistage_common.links.frames import Cancel, Credit, Data, Error, Inlet, Release, Subscribe
from omnistage_common.links.replica_link import CREDIT
from omnistage_common.payloads import Output, Payload, PayloadKind, Tensor, TensorRef
from omnistage_common.tensors import TensorPlane
from omnistage_stage.service.intake import Intake, Port
from omnistage_stage.service.peers import Peers

CODES = OutputName("codes")
SAID = OutputName("text")
MIB = 1 << 20


def codes(*values: int) -> Output:
    """A piece of codec frames."""
    return Output(name=CODES, payload=rows(*values))


def inlet(producer: FakeReplica, *outputs: OutputName) -> Inlet:
    """What a gateway says of a producer."""
    return Inlet(
        token=StreamToken(f"token of {producer.port}"),
        address=f"127.0.0.1:{producer.port}",
        incarnation=Incarnation("fake"),
        outputs=outputs,
    )


class Producing:
    """A producer as a test plays it: one subscription, and a plane to publish from."""

    def __init__(self, replica: FakeReplica, plane: TensorPlane) -> None:
        self.replica = replica
        self.plane = plane
        self._subscribed: Subscribe | None = None
        self._sent = 0

    async def subscribed(self) -> Subscribe:
        """The subscription, once it is there."""
        self._subscribed = self._subscribed or await self.replica.hears(Subscribe)
        return self._subscribed

    async def says(self, *outputs: Output) -> None:
        """One Data frame."""
        number = (await self.subscribed()).request
        self.replica.say(data(number, self._sent, *outputs))
        self._sent += 1

    async def ends(self) -> None:
        """The End."""
        self.replica.say(end((await self.subscribed()).request, self._sent))

    async def fails(self, error: OmnistageError) -> None:
        """An Error."""
        self.replica.say(Error(request=(await self.subscribed()).request, error=error))

    async def hears_release(self) -> None:
        """The consumer has done with everything; it may have granted credit before it knew."""
        async with asyncio.timeout(10):
            frame: object = None
            while not isinstance(frame, Release):
                frame = await self.replica.hears(object)  # type: ignore[type-var]

    async def published(self, name: OutputName, fill: bytes) -> Output:
        """A large tensor, by reference."""
        ref = await self.plane.publish(
            tensor(MIB, fill), owner="producer", deadline=Deadline.after(30)
        )
        assert isinstance(ref, TensorRef)
        return Output(name=name, payload=Payload(kind=PayloadKind.HIDDEN_STATES, content=ref))

    def releases_oldest(self, output: Output) -> None:
        """What a producer does when credit comes."""
        content = output.payload.content
        assert isinstance(content, TensorRef)
        assert self.plane.release([content.lease]) == 1


class World:
    """Producers, and the consumer's replica as far as an intake needs it."""

    def __init__(self, directory: Path, stack: AsyncExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self.peers = Peers()
        self.plane = self._new_plane()
        self.made: list[Intake] = []

    def _new_plane(self) -> TensorPlane:
        plane = TensorPlane(
            incarnation=new_incarnation(),
            host=this_host(),
            slab_bytes=4 * MIB,
            directory=self._directory,
        )
        self._stack.callback(plane.close)
        return plane

    async def producer(self) -> Producing:
        """One more producer."""
        replica = await self._stack.enter_async_context(fake_replica())
        return Producing(replica, self._new_plane())

    def intake(self, *inlets: Inlet) -> Intake:
        """The open intake of a request."""
        made = Intake(inlets, deadline=Deadline.after(30), plane=self.plane, peers=self.peers)
        made.open()
        self.made.append(made)
        return made

    async def one_port(self) -> tuple[Producing, Port, Intake]:
        """A request with one stream."""
        producer = await self.producer()
        intake = self.intake(inlet(producer.replica, CODES))
        return producer, intake.streams[CODES], intake


@asynccontextmanager
async def _world(directory: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        world = World(directory, stack)
        stack.push_async_callback(world.peers.close)
        yield world
        for intake in world.made:
            intake.close()
            intake.close()
        statistics = world.plane.statistics()
        assert (statistics.leases, statistics.used_bytes) == (0, 0)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """What a test needs, which holds nothing any more when it is over."""
    async with _world(tmp_path) as made:
        yield made


async def values(port: Port) -> list[list[int]]:
    """The frames of all pieces, to the end."""
    return [rows_of(payload) async for payload in port]


async def next_of(port: Port) -> Payload:
    """The next piece, which comes."""
    return await asyncio.wait_for(anext(port), 10)


async def test_pieces_arrive_in_order_and_iteration_ends_with_the_stream(world: World) -> None:
    producer, port, _ = await world.one_port()
    await producer.says(codes(1), codes(2, 3))
    await producer.says(codes(4))
    await producer.ends()

    assert await values(port) == [[1], [2, 3], [4]]
    assert await values(port) == [], "it stays at its end"


async def test_a_stream_without_pieces_ends(world: World) -> None:
    producer, port, _ = await world.one_port()
    await producer.ends()

    assert await values(port) == []


async def test_it_subscribes_before_anything_is_read(world: World) -> None:
    producer, _, _ = await world.one_port()

    subscribed = await producer.subscribed()

    assert subscribed.token == f"token of {producer.replica.port}"
    assert (subscribed.incarnation, subscribed.credit) == ("fake", CREDIT)


async def test_a_reader_that_waits_is_woken_by_what_comes(world: World) -> None:
    producer, port, _ = await world.one_port()
    reading = asyncio.create_task(values(port))
    await producer.subscribed()
    assert not reading.done()

    await producer.says(codes(1))
    await producer.ends()

    assert await asyncio.wait_for(reading, 10) == [[1]]


async def test_a_reader_that_gives_up_waiting_loses_nothing(world: World) -> None:
    producer, port, _ = await world.one_port()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(port), 0.01)

    await producer.says(codes(1))
    await producer.ends()

    assert await values(port) == [[1]]


async def test_credit_comes_back_in_halves_of_the_window_as_pieces_are_done_with(
    world: World,
) -> None:
    producer, port, _ = await world.one_port()
    for value in range(CREDIT):
        await producer.says(codes(value))
    for value in range(CREDIT // 2):
        assert rows_of(await next_of(port)) == [value]

    await next_of(port)

    assert (await producer.replica.hears(Credit)).frames == CREDIT // 2


async def test_a_tensor_is_read_in_place_and_done_with_when_the_next_is_asked_for(
    world: World,
) -> None:
    producer, port, _ = await world.one_port()
    first = await producer.published(CODES, b"\x01")
    second = await producer.published(CODES, b"\x02")
    await producer.says(first)
    await producer.says(second)
    shown = (await next_of(port)).content
    assert isinstance(shown, Tensor)
    assert shown.data == tensor(MIB, b"\x01").data

    later = (await next_of(port)).content
    assert (await producer.replica.hears(Credit)).frames == 1
    producer.releases_oldest(first)
    assert isinstance(later, Tensor)
    assert later.data == tensor(MIB, b"\x02").data
    await producer.ends()

    with pytest.raises(StopAsyncIteration):
        await next_of(port)
    await producer.hears_release()


async def test_frames_are_granted_oldest_first(world: World) -> None:
    """Credit counts frames, so one that is done with waits for those before it."""
    producer = await world.producer()
    intake = world.intake(inlet(producer.replica, CODES, SAID))
    codes_port, text_port = intake.streams[CODES], intake.streams[SAID]
    await producer.says(text_output("a"))
    for value in range(CREDIT - 1):
        await producer.says(codes(value))
    for value in range(CREDIT - 1):
        assert rows_of(await next_of(codes_port)) == [value]

    assert (await next_of(text_port)).content == "a"
    waiting = asyncio.create_task(anext(text_port))

    granted = 0
    while granted < CREDIT // 2:
        granted += (await producer.replica.hears(Credit)).frames
    waiting.cancel()
    await asyncio.wait((waiting,))


async def test_whoever_waits_at_one_port_lets_the_producer_go_on_with_others(
    world: World,
) -> None:
    producer = await world.producer()
    intake = world.intake(inlet(producer.replica, CODES, SAID))
    waiting = asyncio.create_task(anext(intake.streams[SAID]))
    granted, sent = CREDIT, 0
    while sent < 3 * CREDIT:
        for _ in range(granted):
            await producer.says(codes(sent))
            sent += 1
        granted = (await producer.replica.hears(Credit)).frames
    await producer.says(text_output("at last"))
    await producer.ends()

    assert (await asyncio.wait_for(waiting, 10)).content == "at last"
    found = await values(intake.streams[CODES])
    assert found == [[value] for value in range(sent)]


async def test_whoever_waits_at_one_port_frees_the_tensors_of_others(world: World) -> None:
    """The producer's slab holds three of them: without that, it could not go on."""
    producer = await world.producer()
    intake = world.intake(inlet(producer.replica, CODES, SAID))
    waiting = asyncio.create_task(anext(intake.streams[SAID]))
    for number in range(8):
        output = await producer.published(CODES, bytes([number]))
        await producer.says(output)
        assert (await producer.replica.hears(Credit)).frames == 1
        producer.releases_oldest(output)
    await producer.says(text_output("at last"))
    await producer.ends()
    await asyncio.wait_for(waiting, 10)

    contents = [payload.content async for payload in intake.streams[CODES]]

    expected = [tensor(MIB, bytes([number])).data for number in range(8)]
    assert [bytes(c.data) for c in contents if isinstance(c, Tensor)] == expected


async def test_where_several_ports_arrive_a_tensor_in_use_holds_nobody_up(world: World) -> None:
    """An engine may read one tensor of a port and never ask for another."""
    producer = await world.producer()
    intake = world.intake(inlet(producer.replica, CODES, SAID))
    large = await producer.published(CODES, b"\x05")
    await producer.says(large)

    shown = (await next_of(intake.streams[CODES])).content

    assert (await producer.replica.hears(Credit)).frames == 1
    producer.releases_oldest(large)
    await producer.published(SAID, b"\x06")
    assert isinstance(shown, Tensor)
    assert shown.data == tensor(MIB, b"\x05").data


async def test_two_producers_do_not_hold_each_other_up(world: World) -> None:
    one, two = await world.producer(), await world.producer()
    intake = world.intake(inlet(one.replica, CODES), inlet(two.replica, SAID))
    waiting = asyncio.create_task(anext(intake.streams[SAID]))
    for _ in range(CREDIT):
        await one.says(codes(1))

    assert (await one.replica.hears(Credit)).frames >= CREDIT // 2

    await two.says(text_output("x"))
    assert (await asyncio.wait_for(waiting, 10)).content == "x"


async def test_two_readers_share_one_request(world: World) -> None:
    producer = await world.producer()
    intake = world.intake(inlet(producer.replica, CODES, SAID))
    reading = [
        asyncio.create_task(values(intake.streams[CODES])),
        asyncio.create_task(anext(intake.streams[SAID])),
    ]
    await producer.says(codes(1))
    await producer.says(text_output("x"), codes(2))
    await producer.ends()

    found, text = await asyncio.wait_for(asyncio.gather(*reading), 10)

    assert found == [[1], [2]]
    assert isinstance(text, Payload)
    assert text.content == "x"


async def failed(producer: Producing) -> None:
    await producer.fails(EngineFailed("the producer broke"))


async def gone(producer: Producing) -> None:
    await producer.subscribed()
    await producer.replica.stop()


async def gap(producer: Producing) -> None:
    producer.replica.say(data((await producer.subscribed()).request, 7, codes(1)))


async def duplicate(producer: Producing) -> None:
    producer.replica.say(data((await producer.subscribed()).request, 0, codes(1)))


async def reordered(producer: Producing) -> None:
    number = (await producer.subscribed()).request
    producer.replica.say(data(number, 2, codes(1)), data(number, 1, codes(1)))


async def miscounted(producer: Producing) -> None:
    producer.replica.say(end((await producer.subscribed()).request, 9))


async def strange_output(producer: Producing) -> None:
    await producer.says(Output(name=OutputName("strange"), payload=rows(1)))


LOSSES: dict[str, tuple[Callable[..., object], type[OmnistageError]]] = {
    "the producer failed": (failed, EngineFailed),
    "the producer is gone": (gone, StageUnavailable),
    "a frame is missing": (gap, ProtocolViolation),
    "a frame came twice": (duplicate, ProtocolViolation),
    "frames came out of order": (reordered, ProtocolViolation),
    "the end counts other frames": (miscounted, ProtocolViolation),
    "an output that was not asked for": (strange_output, ProtocolViolation),
}


@pytest.mark.parametrize(("lose", "error"), LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("waiting", [True, False], ids=["while waiting", "before reading on"])
async def test_a_loss_is_raised_and_what_came_before_is_not_passed_off_as_all(
    world: World, lose: Callable[..., object], error: type[OmnistageError], *, waiting: bool
) -> None:
    producer, port, intake = await world.one_port()
    await producer.says(codes(1))
    assert rows_of(await next_of(port)) == [1]
    reading = asyncio.create_task(anext(port)) if waiting else None

    await lose(producer)  # type: ignore[misc]

    with pytest.raises(error) as lost:
        await (asyncio.wait_for(reading, 10) if reading else next_of(port))
    assert intake.raised(lost.value)
    with pytest.raises(error):
        await next_of(port)


async def test_every_port_of_a_lost_producer_raises_and_others_go_on(world: World) -> None:
    lost, fine = await world.producer(), await world.producer()
    intake = world.intake(inlet(lost.replica, CODES, SAID), inlet(fine.replica, OutputName("ok")))
    await lost.fails(EngineFailed("broke"))
    for name in (CODES, SAID):
        with pytest.raises(EngineFailed):
            await next_of(intake.streams[name])

    await fine.says(Output(name=OutputName("ok"), payload=rows(1)))

    assert rows_of(await next_of(intake.streams[OutputName("ok")])) == [1]


@pytest.mark.parametrize("outputs", [(CODES,), (CODES, SAID)], ids=["one port", "two ports"])
async def test_a_tensor_that_is_gone_is_raised(
    world: World, outputs: tuple[OutputName, ...]
) -> None:
    producer = await world.producer()
    intake = world.intake(inlet(producer.replica, *outputs))
    gone_one = Output(name=CODES, payload=reference().payload)
    await producer.says(gone_one)

    with pytest.raises(TensorLost) as lost:
        await next_of(intake.streams[CODES])

    assert not intake.raised(lost.value)


async def test_a_tensor_that_is_gone_because_its_producer_failed_is_that_failure(
    world: World,
) -> None:
    producer, port, _ = await world.one_port()
    await producer.says(Output(name=CODES, payload=reference().payload))
    reading = asyncio.create_task(anext(port))
    await asyncio.sleep(0.01)

    await producer.fails(EngineFailed("broke"))

    with pytest.raises(EngineFailed):
        await asyncio.wait_for(reading, 10)


@pytest.mark.parametrize("read", [0, 1])
async def test_closing_early_cancels_the_subscription(world: World, read: int) -> None:
    producer, port, intake = await world.one_port()
    await producer.says(await producer.published(CODES, b"\x01"))
    for _ in range(read):
        await next_of(port)
    await producer.subscribed()

    intake.close()

    await producer.replica.hears(Cancel)


async def test_closing_after_the_end_releases_what_was_not_read(world: World) -> None:
    producer, port, intake = await world.one_port()
    number = (await producer.subscribed()).request
    outputs = (await producer.published(CODES, b"\x01"), codes(1))
    whole = wire.encode_from_replica([data(number, 0, *outputs), end(number, 1)])
    producer.replica.say(whole.SerializeToString())
    await next_of(port)

    intake.close()

    await producer.replica.hears(Release)


async def test_a_stream_read_to_its_end_is_released_at_once_and_leaves_its_link(
    world: World,
) -> None:
    producer, port, intake = await world.one_port()
    await producer.says(codes(1))
    await producer.ends()

    assert await values(port) == [[1]]
    intake.close()

    other = world.intake(inlet(producer.replica, CODES))
    assert isinstance(await producer.replica.hears(Subscribe), Subscribe), "nothing was said before"
    other.close()
    assert len(producer.replica.links) == 1


async def test_two_inlets_cannot_bring_the_same_output(world: World) -> None:
    producer = await world.producer()
    twice = inlet(producer.replica, CODES)

    with pytest.raises(InvalidRequest, match="'codes'"):
        Intake((twice, twice), deadline=Deadline.after(1), plane=world.plane, peers=world.peers)


async def test_data_of_a_closed_intake_is_ignored(world: World) -> None:
    producer, _, intake = await world.one_port()
    await producer.subscribed()
    intake.close()
    await producer.says(codes(1))

    other = world.intake(inlet(producer.replica, CODES))
    again = await producer.replica.hears(Cancel)
    assert isinstance(again, Cancel)
    subscribed = await producer.replica.hears(Subscribe)
    producer.replica.say(Data(request=subscribed.request, sequence=0, outputs=(codes(2),)))

    assert rows_of(await next_of(other.streams[CODES])) == [2]
