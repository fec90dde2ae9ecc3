"""Stream edges between real stage processes: nothing is lost, and whatever dies, nothing is left."""

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc.aio
import msgspec
import pytest

from fakes import streaming_engines
from fakes.engine_packages import EngineEnvironment
from fakes.frames import outlet, text_output
from fakes.link_client import LinkClient, grpc_link
from fakes.stage_process import STAGE, StageProcess, free_port, stage_plan
from fakes.streaming_engines import Emission, Reading
from omnistage_common.channels import CHANNEL_OPTIONS
from omnistage_common.errors import (
    EngineFailed,
    OmnistageError,
    RequestCancelled,
    StageUnavailable,
    TensorLost,
)
from omnistage_common.ids import (
    Incarnation,
    OutputName,
    RequestNumber,
    StageName,
    StreamToken,
    new_stream_token,
)
from omnistage_common.links.frames import End, Error, Inlet, Phase
from omnistage_common.links.replica_link import Streams
from omnistage_common.payloads import Output, PayloadKind
from omnistage_common.pipeline.plan import ChunkPlan, EdgeMode, EdgePlan
from omnistage_protos.stage.v1 import stage_pb2, stage_pb2_grpc

CODES = OutputName("codes")
SPOKEN = {"codes": PayloadKind.CODEC_FRAMES, "text": PayloadKind.TEXT}
EDGE = EdgePlan(
    producer=StageName("producer"),
    consumer=StageName(STAGE),
    output=CODES,
    kind=PayloadKind.CODEC_FRAMES,
    mode=EdgeMode.STREAM,
    chunk=ChunkPlan(first_frames=(2,), frames=8),
)
LOSS_S = 1.0
"""A peer that is dead is noticed within this."""
FROZEN_S = 3.5
"""A peer that is frozen is: three seconds, and what a busy machine adds."""
ASKINGS = 2000
REQUESTS = 2000
AT_ONCE = 24
LARGE = 256 * 1024
"""Bytes of a row that goes by reference."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that finds the engines of these tests."""
    environment = EngineEnvironment(tmp_path_factory.mktemp("engines") / "environment")
    module = Path(streaming_engines.__file__)
    environment.register(module, emitter="Emitter", reader="Reader")
    return environment.python


class Pair:
    """A producer and a consumer; each can be ended and started again at the same place."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._python = python
        self._folder = folder
        self._ports = {"emitter": free_port(), "reader": free_port()}
        self.producer = self.start("emitter")
        self.consumer = self.start("reader")

    def start(self, engine: str) -> StageProcess:
        """One of the two."""
        plan = stage_plan(
            {},
            SPOKEN if engine == "emitter" else {"text": PayloadKind.TEXT},
            engine=engine,
            max_running=AT_ONCE,
            max_queued=AT_ONCE,
            edges=(EDGE,) if engine == "reader" else (),
        )
        return StageProcess(plan, self._folder, python=self._python, port=self._ports[engine])

    async def ready(self) -> None:
        """Both serve."""
        await self.producer.said("ready")
        await self.consumer.said("ready")

    def end(self) -> None:
        """Ends both."""
        self.producer.end()
        self.consumer.end()


@pytest.fixture(scope="module")
def shared(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two processes that several tests talk to, and none ends."""
    pair = Pair(python, tmp_path_factory.mktemp("pair"))
    yield pair
    pair.end()


@pytest.fixture
def pair(python: Path, tmp_path: Path) -> Iterator[Pair]:
    """Two processes of the test's own."""
    made = Pair(python, tmp_path)
    yield made
    made.end()


class Gateway:
    """Introduces the two to each other, as a gateway does."""

    def __init__(self, pair: Pair, producer: LinkClient, consumer: LinkClient) -> None:
        self._pair = pair
        self.producer = producer
        self.consumer = consumer

    @property
    def incarnation(self) -> Incarnation:
        """The producer's."""
        return self.producer.statuses[0].incarnation

    async def emits(
        self, emission: Emission, token: StreamToken, *, first: int = 1, frames: int = 1
    ) -> RequestNumber:
        """Opens the producer's part."""
        streams = Streams(
            outlets=(outlet(token, "codes", first_frames=first, frames=frames),),
            withheld=(CODES,),
        )
        return await self.producer.open(_asks(emission), streams=streams, seconds=60)

    async def reads(
        self, reading: Reading, token: StreamToken, *, incarnation: Incarnation | None = None
    ) -> RequestNumber:
        """Opens the consumer's part."""
        inlet = Inlet(
            token=token,
            address=self._pair.producer.address,
            incarnation=incarnation or self.incarnation,
            outputs=(CODES,),
        )
        return await self.consumer.open(
            _asks(reading), streams=Streams(inlets=(inlet,)), seconds=60
        )

    async def streams(
        self, emission: Emission, reading: Reading, *, first: int = 1, frames: int = 1
    ) -> tuple[RequestNumber, RequestNumber]:
        """Opens both."""
        token = new_stream_token()
        emitting = await self.emits(emission, token, first=first, frames=frames)
        return emitting, await self.reads(reading, token)

    async def flows(self, reading: RequestNumber) -> None:
        """Pieces have arrived."""
        await self.consumer.until(lambda: len(self.consumer.text(reading)) >= 3)


def _asks(what: Emission | Reading) -> Output:
    return text_output(msgspec.json.encode(what).decode())


@asynccontextmanager
async def gateway_of(pair: Pair) -> AsyncIterator[Gateway]:
    """A gateway with a link to each."""
    await pair.ready()
    async with (
        grpc_link(pair.producer.address) as producer,
        grpc_link(pair.consumer.address) as consumer,
    ):
        await producer.phase(Phase.READY)
        await consumer.phase(Phase.READY)
        yield Gateway(pair, producer, consumer)


@asynccontextmanager
async def describing(*processes: StageProcess) -> AsyncIterator[list[Callable[..., object]]]:
    """For each process, what asks it how much it holds."""
    async with AsyncExitStack() as stack:
        asking: list[Callable[..., object]] = []
        for process in processes:
            channel = await stack.enter_async_context(
                grpc.aio.insecure_channel(process.address, options=CHANNEL_OPTIONS)
            )
            asking.append(stage_pb2_grpc.StageServiceStub(channel).Describe)
        yield asking


async def nothing_is_left(*processes: StageProcess, tasks: int | None = None) -> None:
    """The processes hold nothing of any request, as soon as they have heard of its end."""
    async with describing(*processes) as asking:
        for describe in asking:
            for _ in range(ASKINGS):
                answer = await describe(  # type: ignore[misc]
                    stage_pb2.DescribeRequest(), timeout=5, wait_for_ready=True
                )
                now = answer.occupancy
                held = (now.running, now.queued, now.open_requests, now.leases, now.slab_bytes)
                if held == (0, 0, 0, 0, 0) and (tasks is None or now.tasks <= tasks):
                    break
            else:
                raise AssertionError(f"still holds {now}")


async def task_count(process: StageProcess) -> int:
    """Asyncio tasks of a process."""
    async with describing(process) as (describe,):
        answer = await describe(stage_pb2.DescribeRequest(), timeout=5)  # type: ignore[misc]
        return int(answer.occupancy.tasks)


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """What happens in here takes no longer."""
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < seconds


async def works(pair: Pair) -> None:
    """The next request is served, whatever happened before."""
    async with gateway_of(pair) as gateway:
        emitting, reading = await gateway.streams(Emission(pieces=5), Reading())
        await gateway.consumer.ended(reading)
        await gateway.producer.ended(emitting)
        assert " 5 rows" in gateway.consumer.text(reading)


@pytest.mark.parametrize("put", [True, False], ids=["put", "emit"])
@pytest.mark.parametrize(("first", "frames"), [(1, 1), (2, 8), (16, 25)])
async def test_every_frame_arrives_in_order_however_it_is_cut(
    shared: Pair, first: int, frames: int, *, put: bool
) -> None:
    async with gateway_of(shared) as gateway:
        emission = Emission(pieces=301, put=put)
        emitting, reading = await gateway.streams(emission, Reading(), first=first, frames=frames)
        end = await gateway.consumer.ended(reading)
        await gateway.producer.ended(emitting)

        assert end.usage.input_tokens == 301
        assert gateway.consumer.text(reading).endswith(" 301 rows, stream")
        assert gateway.producer.progress(emitting)[-1] == (301, 301)
        assert gateway.producer.text(emitting) == "x" * 301
        assert {output.name for output in gateway.producer.outputs(emitting)} == {"text"}

    await nothing_is_left(shared.producer, shared.consumer)


async def test_large_frames_go_by_reference_and_the_slab_bounds_them(shared: Pair) -> None:
    async with gateway_of(shared) as gateway:
        emission = Emission(pieces=100, width=LARGE)
        emitting, reading = await gateway.streams(emission, Reading())
        await gateway.consumer.ended(reading)
        await gateway.producer.ended(emitting)

        assert " 100 rows" in gateway.consumer.text(reading)

    await nothing_is_left(shared.producer, shared.consumer)


async def test_a_consumer_that_is_opened_first_waits_for_its_producer(shared: Pair) -> None:
    async with gateway_of(shared) as gateway:
        token = new_stream_token()
        reading = await gateway.reads(Reading(), token)
        async with describing(shared.producer) as (describe,):
            for _ in range(ASKINGS):
                answer = await describe(stage_pb2.DescribeRequest(), timeout=5)  # type: ignore[misc]
                if answer.occupancy.open_requests:
                    break
        emitting = await gateway.emits(Emission(pieces=3), token)

        await gateway.consumer.ended(reading)
        await gateway.producer.ended(emitting)
        assert " 3 rows" in gateway.consumer.text(reading)


async def test_a_slow_consumer_holds_its_producer_up_and_nobody_else(shared: Pair) -> None:
    async with gateway_of(shared) as gateway:
        emission = Emission(pieces=10_000, width=8192)
        slow, reading = await gateway.streams(emission, Reading(pause=0.05))
        await gateway.flows(reading)
        emitting, other = await gateway.streams(Emission(pieces=200), Reading())
        await gateway.consumer.ended(other)
        await gateway.producer.ended(emitting)

        ahead = len(gateway.producer.text(slow)) - len(gateway.consumer.text(reading))
        assert ahead < 1000, "the window is 32 frames of at most 16 pieces"
        await gateway.producer.cancel(slow)
        assert type((await gateway.consumer.failed(reading)).error) is RequestCancelled

    await nothing_is_left(shared.producer, shared.consumer)


async def test_a_consumer_that_has_enough_lets_its_producer_finish(shared: Pair) -> None:
    async with gateway_of(shared) as gateway:
        emission = Emission(pieces=500, width=LARGE)
        emitting, reading = await gateway.streams(emission, Reading(pieces=2))

        await gateway.consumer.ended(reading)
        await gateway.producer.ended(emitting)

        assert " 2 rows" in gateway.consumer.text(reading)

    await nothing_is_left(shared.producer, shared.consumer)


async def test_a_producer_that_fails_fails_its_consumer(shared: Pair) -> None:
    async with gateway_of(shared) as gateway:
        emitting, reading = await gateway.streams(Emission(pieces=3, fail=True), Reading())

        for client, number in ((gateway.producer, emitting), (gateway.consumer, reading)):
            error = (await client.failed(number)).error
            assert type(error) is EngineFailed
            assert error.message == "the emitter broke"

    await nothing_is_left(shared.producer, shared.consumer)


ENDLESS = Emission(pieces=100_000, width=LARGE, pause=0.001)


@pytest.mark.parametrize("width", [16, LARGE], ids=["inline", "by reference"])
@pytest.mark.parametrize("end", ["producer", "consumer"])
async def test_a_cancel_of_either_part_frees_both(shared: Pair, end: str, width: int) -> None:
    async with gateway_of(shared) as gateway:
        emission = Emission(pieces=100_000, width=width, pause=0.001)
        emitting, reading = await gateway.streams(emission, Reading())
        await gateway.flows(reading)

        if end == "producer":
            await gateway.producer.cancel(emitting)
            assert type((await gateway.consumer.failed(reading)).error) is RequestCancelled
        else:
            await gateway.consumer.cancel(reading)
            await gateway.producer.cancel(emitting)

        await nothing_is_left(shared.producer, shared.consumer)


async def test_a_gateway_that_is_gone_takes_everything_with_it(shared: Pair) -> None:
    async with gateway_of(shared) as gateway:
        _, reading = await gateway.streams(ENDLESS, Reading())
        await gateway.flows(reading)

    await nothing_is_left(shared.producer, shared.consumer)
    await works(shared)


async def test_a_killed_consumer_holds_nothing_of_its_producer(pair: Pair) -> None:
    async with gateway_of(pair) as gateway:
        endless, reading = await gateway.streams(ENDLESS, Reading())
        finite, also = await gateway.streams(Emission(pieces=300, width=LARGE), Reading(pause=0.1))
        await gateway.flows(reading)
        await gateway.consumer.until(lambda: bool(gateway.consumer.text(also)))

        async with within(LOSS_S):
            pair.consumer.send(signal.SIGKILL)
            await gateway.producer.ended(finite)
        await gateway.producer.cancel(endless)

        await nothing_is_left(pair.producer)
    pair.consumer.end()
    pair.consumer = pair.start("reader")
    await works(pair)


async def test_a_frozen_consumer_holds_nothing_of_its_producer(pair: Pair) -> None:
    async with gateway_of(pair) as gateway:
        finite, reading = await gateway.streams(
            Emission(pieces=300, width=LARGE), Reading(pause=0.1)
        )
        await gateway.flows(reading)

        async with within(FROZEN_S):
            pair.consumer.send(signal.SIGSTOP)
            await gateway.producer.ended(finite)

        await nothing_is_left(pair.producer)
    pair.consumer.send(signal.SIGCONT)
    await nothing_is_left(pair.consumer)
    await works(pair)


@pytest.mark.parametrize("width", [16, LARGE], ids=["inline", "by reference"])
async def test_a_killed_producer_fails_its_consumer(pair: Pair, width: int) -> None:
    async with gateway_of(pair) as gateway:
        emission = Emission(pieces=100_000, width=width, pause=0.001)
        _, reading = await gateway.streams(emission, Reading())
        await gateway.flows(reading)
        earlier = gateway.incarnation

        async with within(LOSS_S):
            pair.producer.send(signal.SIGKILL)
            error = (await gateway.consumer.failed(reading)).error
        assert isinstance(error, StageUnavailable | TensorLost)

        await nothing_is_left(pair.consumer)
    pair.producer.end()
    pair.producer = pair.start("emitter")
    async with gateway_of(pair) as gateway:
        stale = await gateway.reads(Reading(), new_stream_token(), incarnation=earlier)
        async with within(LOSS_S):
            assert type((await gateway.consumer.failed(stale)).error) is TensorLost
    await works(pair)


async def test_a_frozen_producer_fails_its_consumer(pair: Pair) -> None:
    async with gateway_of(pair) as gateway:
        _, reading = await gateway.streams(ENDLESS, Reading())
        await gateway.flows(reading)

        async with within(FROZEN_S):
            pair.producer.send(signal.SIGSTOP)
            error = (await gateway.consumer.failed(reading)).error
        assert type(error) is StageUnavailable

        await nothing_is_left(pair.consumer)
    pair.producer.send(signal.SIGCONT)
    await nothing_is_left(pair.producer)
    await works(pair)


async def test_a_producer_that_is_not_there_fails_its_consumer(pair: Pair) -> None:
    async with gateway_of(pair) as gateway:
        pair.producer.send(signal.SIGKILL)
        await pair.producer.exit_code()

        async with within(LOSS_S):
            reading = await gateway.reads(Reading(), new_stream_token())
            assert type((await gateway.consumer.failed(reading)).error) is StageUnavailable

        await nothing_is_left(pair.consumer)


async def test_a_producer_that_drains_finishes_its_streams(pair: Pair) -> None:
    async with gateway_of(pair) as gateway:
        emission = Emission(pieces=50, width=LARGE, pause=0.005)
        emitting, reading = await gateway.streams(emission, Reading())
        await gateway.flows(reading)

        pair.producer.send(signal.SIGTERM)

        await gateway.consumer.ended(reading)
        await gateway.producer.ended(emitting)
        assert " 50 rows" in gateway.consumer.text(reading)
        assert await pair.producer.exit_code() == 0


class Storm:
    """Requests of all sizes, many of them cancelled anywhere in their lives."""

    def __init__(self, gateway: Gateway, seed: int) -> None:
        self._gateway = gateway
        self._die = random.Random(seed)  # noqa: S311 - reproducible
        self._left = REQUESTS
        self.well: set[type[OmnistageError] | None] = set()
        """How those ended of which nothing was to go wrong."""
        self.badly: set[type[OmnistageError] | None] = set()
        """How those ended whose producer broke: a tensor of it may be gone before its error came."""

    async def requests(self) -> None:
        """One after the other, until all are done."""
        while self._left:
            self._left -= 1
            await self._request()

    async def _request(self) -> None:
        die, gateway = self._die, self._gateway
        emission = Emission(
            pieces=die.randint(0, 40),
            rows=die.randint(1, 3),
            width=die.choice([1, 64, 64, 4096, 40_000, LARGE]),
            put=True,
            pause=die.choice([0.0, 0.0, 0.0005]),
            fail=die.random() < 0.05,
        )
        reading = Reading(pieces=die.choice([None, None, None, 2]))
        token = new_stream_token()
        chunk = die.choice([1, 2, 8])
        opening = [
            lambda: gateway.emits(emission, token, first=chunk, frames=chunk * 2),
            lambda: gateway.reads(reading, token),
        ]
        order = die.choice([(0, 1), (1, 0)])
        numbers = {kind: await opening[kind]() for kind in order}
        calls = [(gateway.producer, numbers[0]), (gateway.consumer, numbers[1])]
        if die.random() < 0.4:
            await asyncio.sleep(die.choice([0, 0, 0.001, 0.003, 0.01]))
            die.shuffle(calls)
            for client, number in calls:
                await client.cancel(number)
            return
        for client, number in calls:
            last = await client.outcome(number)
            ends = self.badly if emission.fail else self.well
            ends.add(type(last.error) if isinstance(last, Error) else None)
            if isinstance(last, End):
                await client.release(number)


async def test_two_thousand_streams_with_random_cancellation_leave_nothing(pair: Pair) -> None:
    async with gateway_of(pair) as gateway:
        emitting, reading = await gateway.streams(Emission(pieces=3), Reading())
        await gateway.consumer.ended(reading)
        await gateway.producer.ended(emitting)
        tasks = [await task_count(process) for process in (pair.producer, pair.consumer)]
        storm = Storm(gateway, seed=1)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(storm.requests())

        for process, count in zip((pair.producer, pair.consumer), tasks, strict=True):
            await nothing_is_left(process, tasks=count)
        assert storm.well == {None}
        assert storm.badly <= {None, EngineFailed, TensorLost}
    assert pair.producer.segments
