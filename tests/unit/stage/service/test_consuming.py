"""A request with inlets on a link: it subscribes, hands the engine streams, and lets go at every end."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from fakes.fake_replica import FakeReplica, fake_replica
from fakes.frames import data, end, rows, rows_of
from fakes.link_client import LinkClient, memory_link
from fakes.scripted_engine import ScriptedEngine
from omnistage_common.errors import (
    EngineFailed,
    InvalidRequest,
    StageUnavailable,
    TooManyRequests,
)
from omnistage_common.ids import Incarnation, OutputName, RequestNumber, StreamToken
from omnistage_common.links.frames import Cancel, Data, Error, Inlet, Subscribe
from omnistage_common.links.replica_link import Streams
from omnistage_common.payloads import Output
from omnistage_stage.service.replica import Replica

CODES = OutputName("codes")
NewReplica = Callable[..., Replica]


@pytest.fixture
async def producer() -> AsyncIterator[FakeReplica]:
    """A producer that does as it is told."""
    async with fake_replica() as replica:
        yield replica


def streams_of(producer: FakeReplica, *, times: int = 1) -> Streams:
    """The inlets of a request."""
    inlet = Inlet(
        token=StreamToken("token"),
        address=f"127.0.0.1:{producer.port}",
        incarnation=Incarnation("fake"),
        outputs=(CODES,),
    )
    return Streams(inlets=(inlet,) * times)


def codes(number: RequestNumber, sequence: int, value: int) -> Data:
    """A Data frame with one codec frame."""
    return data(number, sequence, Output(name=CODES, payload=rows(value)))


async def pieces(engine: ScriptedEngine, client: LinkClient, number: RequestNumber) -> list[int]:
    """What the engine gets of a stream, to its end."""
    run = await engine.started(client.id_of(number))
    found: list[int] = []
    async for payload in run.request.pieces(CODES):
        found += rows_of(payload)
    return found


async def test_an_engine_gets_what_its_producer_streams(
    replica: Replica, engine: ScriptedEngine, producer: FakeReplica
) -> None:
    async with memory_link(replica) as (client, _):
        number = await client.open(streams=streams_of(producer))
        asked = (await producer.hears(Subscribe)).request
        for sequence in range(3):
            producer.say(codes(asked, sequence, sequence))
        producer.say(end(asked, 3))

        assert await asyncio.wait_for(pieces(engine, client, number), 10) == [0, 1, 2]

        engine.runs[client.id_of(number)].finish()
        await client.ended(number)
    await replica.peers.close()


async def test_a_request_that_waits_for_its_place_has_subscribed_already(
    make_replica: NewReplica, engine: ScriptedEngine, producer: FakeReplica
) -> None:
    replica = make_replica(max_running=1)
    async with memory_link(replica) as (client, _):
        running = await client.open()
        run = await engine.started(client.id_of(running))

        waiting = await client.open(streams=streams_of(producer))

        await producer.hears(Subscribe)
        assert replica.admission.queued == 1
        await client.cancel(waiting)
        await producer.hears(Cancel)
        run.finish()
        await client.ended(running)
    await replica.peers.close()


@pytest.mark.parametrize("how", ["returned", "cancelled", "failed"])
async def test_whatever_ends_a_request_ends_its_subscription(
    replica: Replica, engine: ScriptedEngine, producer: FakeReplica, how: str
) -> None:
    async with memory_link(replica) as (client, _):
        number = await client.open(streams=streams_of(producer))
        await producer.hears(Subscribe)
        run = await engine.started(client.id_of(number))

        if how == "returned":
            run.finish()
        elif how == "failed":
            run.fail(ValueError("no"))
        else:
            await client.cancel(number)

        await producer.hears(Cancel)
    await replica.peers.close()


async def test_a_deadline_ends_a_subscription(
    replica: Replica, engine: ScriptedEngine, producer: FakeReplica
) -> None:
    async with memory_link(replica) as (client, _):
        number = await client.open(streams=streams_of(producer), seconds=0.2)
        await engine.started(client.id_of(number))
        await client.failed(number)

        await producer.hears(Subscribe)
        await producer.hears(Cancel)
    await replica.peers.close()


async def test_a_producer_that_failed_is_no_suspicion_against_its_consumer(
    replica: Replica, engine: ScriptedEngine, producer: FakeReplica
) -> None:
    async with memory_link(replica) as (client, _):
        number = await client.open(streams=streams_of(producer))
        asked = (await producer.hears(Subscribe)).request
        producer.say(Error(request=asked, error=EngineFailed("the producer broke")))
        with pytest.raises(EngineFailed) as raised:
            await pieces(engine, client, number)

        engine.runs[client.id_of(number)].fail(raised.value)

        error = (await client.failed(number)).error
        assert (type(error), error.message) == (EngineFailed, "the producer broke")
        assert not replica.suspect.is_set()
    await replica.peers.close()


async def test_a_request_that_is_refused_never_subscribes(
    make_replica: NewReplica, engine: ScriptedEngine, producer: FakeReplica
) -> None:
    replica = make_replica(max_running=1, max_queued=0)
    async with memory_link(replica) as (client, _):
        running = await client.open()
        run = await engine.started(client.id_of(running))

        refused = await client.failed(await client.open(streams=streams_of(producer)))

        assert type(refused.error) is TooManyRequests
        assert len(replica.peers) == 0
        run.finish()
        await client.ended(running)


async def test_inlets_that_bring_the_same_are_refused_and_the_place_is_free(
    replica: Replica, producer: FakeReplica
) -> None:
    async with memory_link(replica) as (client, _):
        twice = await client.failed(await client.open(streams=streams_of(producer, times=2)))

        assert (type(twice.error), twice.error.field) == (InvalidRequest, "inlets")
        assert replica.admission.running == 0


async def test_a_replica_that_closes_subscribes_no_more(
    replica: Replica, producer: FakeReplica
) -> None:
    async with memory_link(replica) as (client, _):
        await replica.peers.close()

        refused = await client.failed(await client.open(streams=streams_of(producer)))

        assert type(refused.error) is StageUnavailable
        assert replica.admission.running == 0
