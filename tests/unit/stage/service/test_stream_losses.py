"""The producer's side of a stream edge when something is lost: everybody is told, nothing is kept."""

import asyncio
from collections.abc import Callable

import pytest

from fakes.edges import BIG, CODES, SAID, TOKEN, Edge, frames_of, one_consumer, piece, until
from fakes.frames import outlet, rows
from fakes.link_client import LinkClient, memory_link
from fakes.scripted_engine import ScriptedEngine
from omnistage_common.errors import (
    DeadlineExceeded,
    Draining,
    EngineFailed,
    InvalidRequest,
    OmnistageError,
    RequestCancelled,
    StageUnavailable,
    TensorLost,
    TooManyRequests,
)
from omnistage_common.ids import Incarnation, RequestNumber
from omnistage_common.links.frames import End, Phase
from omnistage_common.links.replica_link import Streams
from omnistage_stage.service.draining import Drain
from omnistage_stage.service.link import Link
from omnistage_stage.service.replica import Replica

NewReplica = Callable[..., Replica]
Counted = Callable[[str], float]


async def test_a_lost_consumer_holds_nobody_up_and_is_the_gateways_business(edge: Edge) -> None:
    async with one_consumer(edge, credit=1) as (gateway, number, run, consumer, taking):
        await run.outputs.put(CODES, BIG)
        await consumer.until(lambda: bool(consumer.data(taking)))
        await run.outputs.put(CODES, BIG)
        blocked = asyncio.create_task(run.outputs.put(CODES, BIG))

        await consumer.cancel(taking)

        await blocked
        assert edge.leases == 0
        await run.outputs.put(CODES, BIG)
        assert edge.leases == 0
        run.outputs.emit(SAID, piece("still computing"))
        run.finish()
        await gateway.ended(number)
        assert gateway.text(number) == "still computing"
        assert len(consumer.data(taking)) == 1


async def test_a_consumer_whose_link_breaks_is_lost(
    replica: Replica, engine: ScriptedEngine
) -> None:
    async with memory_link(replica) as (gateway, _):
        streams = Streams(outlets=(outlet(TOKEN, "codes"),), withheld=(CODES,))
        number = await gateway.open(streams=streams)
        run = await engine.started(gateway.id_of(number))
        async with memory_link(replica) as (consumer, _):
            taking = await consumer.subscribe(TOKEN, replica.incarnation, credit=1)
            await run.outputs.put(CODES, BIG)
            await consumer.until(lambda: bool(consumer.data(taking)))
            assert replica.plane.statistics().leases == 1
        assert replica.plane.statistics().leases == 0

        await run.outputs.put(CODES, BIG)
        run.finish()

        await gateway.ended(number)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_a_failure_reaches_the_consumer_as_it_is(edge: Edge, *, before: bool) -> None:
    gateway, consumer = await edge.link(), await edge.link()
    taking = await edge.subscribe(consumer) if before else RequestNumber(0)
    number, run = await edge.open(gateway, outlet(TOKEN, "codes"))
    if not before:
        taking = await edge.subscribe(consumer)
    await run.outputs.put(CODES, BIG)
    await consumer.until(lambda: bool(consumer.data(taking)))

    run.fail(EngineFailed("the device is gone"))

    for client, asked in ((consumer, taking), (gateway, number)):
        error = await client.failed(asked)
        assert type(error.error) is EngineFailed
        assert error.error.message == "the device is gone"
    await edge.settles()


@pytest.mark.parametrize("told", [False, True], ids=["at once", "once the gateway knows"])
@pytest.mark.parametrize("cancelled", [False, True], ids=["failed", "cancelled"])
async def test_a_consumer_that_comes_too_late_is_told_why(
    edge: Edge, *, cancelled: bool, told: bool
) -> None:
    gateway, consumer = await edge.link(), await edge.link()
    number, run = await edge.open(gateway, outlet(TOKEN, "codes"))
    if cancelled:
        await gateway.cancel(number)
    else:
        run.fail(EngineFailed("broke"))
    if told:
        await until(lambda: edge.links[0].open_requests == 0)

    taking = await edge.subscribe(consumer)

    error = (await consumer.failed(taking)).error
    assert type(error) is (RequestCancelled if cancelled else EngineFailed)
    await edge.settles()


async def test_a_failure_drops_what_the_consumer_has_not_got_yet(edge: Edge) -> None:
    async with one_consumer(edge, credit=0) as (gateway, number, run, consumer, taking):
        run.outputs.emit(CODES, rows(1))

        run.fail(EngineFailed("broke"))

        await consumer.failed(taking)
        await gateway.failed(number)
        assert consumer.data(taking) == []


async def cancelled_by_the_gateway(edge: Edge, gateway: LinkClient, number: RequestNumber) -> None:
    del edge
    await gateway.cancel(number)


async def link_of_the_gateway_breaks(
    edge: Edge, gateway: LinkClient, number: RequestNumber
) -> None:
    del gateway, number
    edge.links.pop(0).finish()


@pytest.mark.parametrize("lose", [cancelled_by_the_gateway, link_of_the_gateway_breaks])
@pytest.mark.parametrize("computed", [False, True], ids=["running", "computed"])
async def test_a_cancel_reaches_the_consumer_however_far_the_request_is(
    edge: Edge, lose: Callable[..., object], counted: Counted, *, computed: bool
) -> None:
    async with one_consumer(edge, credit=1) as (gateway, number, run, consumer, taking):
        for _ in range(2):
            await run.outputs.put(CODES, BIG)
            await consumer.until(lambda: bool(consumer.data(taking)))
        if computed:
            run.finish()
            await until(lambda: edge.replica.admission.running == 0)
        assert edge.leases == 2

        await lose(edge, gateway, number)  # type: ignore[misc]

        error = await consumer.failed(taking)
        assert type(error.error) is RequestCancelled
        assert edge.leases == 0
        assert counted("cancelled") == (not computed)


async def test_a_cancel_while_the_consumer_reads_the_last_tensors_takes_them(edge: Edge) -> None:
    async with one_consumer(edge) as (gateway, number, run, consumer, taking):
        await run.outputs.put(CODES, BIG)
        run.finish()
        await consumer.ended(taking)

        await gateway.cancel(number)

        await until(lambda: edge.leases == 0)
        await consumer.release(taking)


async def test_a_refused_request_refuses_its_consumers(
    make_replica: NewReplica, engine: ScriptedEngine
) -> None:
    replica = make_replica(max_running=1, max_queued=0)
    async with memory_link(replica) as (gateway, _), memory_link(replica) as (consumer, _):
        running = await gateway.open()
        run = await engine.started(gateway.id_of(running))
        taking = await consumer.subscribe(TOKEN, replica.incarnation)
        number = await gateway.open(streams=Streams(outlets=(outlet(TOKEN, "codes"),)))

        for client, asked in ((consumer, taking), (gateway, number)):
            assert type((await client.failed(asked)).error) is TooManyRequests

        run.finish()
        await gateway.ended(running)
        assert len(replica.outlets) == 0


async def test_another_life_of_the_producer_is_no_producer(edge: Edge) -> None:
    consumer = await edge.link()

    taking = await consumer.subscribe(TOKEN, Incarnation("earlier"))

    error = await consumer.failed(taking)
    assert type(error.error) is TensorLost
    assert "another life" in error.error.message
    await edge.settles()


async def test_a_consumer_waits_for_its_request_until_its_deadline(edge: Edge) -> None:
    consumer = await edge.link()

    taking = await edge.subscribe(consumer, seconds=0.05)

    error = await consumer.failed(taking)
    assert type(error.error) is DeadlineExceeded
    assert "did not come" in error.error.message
    await edge.settles()


async def test_a_consumer_that_waits_can_be_cancelled(edge: Edge) -> None:
    gateway, consumer = await edge.link(), await edge.link()
    taking = await edge.subscribe(consumer)
    await until(lambda: len(edge.replica.outlets) == 1)

    await consumer.cancel(taking)
    await until(lambda: len(edge.replica.outlets) == 0)

    number, run = await edge.open(gateway, outlet(TOKEN, "codes"))
    again = await edge.subscribe(consumer)
    run.finish()
    await consumer.ended(again)
    await gateway.ended(number)
    await edge.settles()


async def test_as_many_consumers_wait_as_the_replica_takes_requests(edge: Edge) -> None:
    consumer = await edge.link()
    waiting = [await edge.subscribe(consumer, f"token-{number}") for number in range(4)]

    refused = await edge.subscribe(consumer, "one-more")

    assert type((await consumer.failed(refused)).error) is TooManyRequests
    for taking in waiting:
        await consumer.cancel(taking)
    await edge.settles()


async def test_a_second_consumer_is_refused_and_the_first_goes_on(edge: Edge) -> None:
    async with one_consumer(edge) as (gateway, number, run, consumer, taking):
        thief = await edge.link()

        stolen = await edge.subscribe(thief)

        assert type((await thief.failed(stolen)).error) is InvalidRequest
        run.outputs.emit(CODES, rows(1))
        run.finish()
        await consumer.ended(taking)
        await gateway.ended(number)
        assert frames_of(consumer, taking) == [[1]]


async def test_two_outlets_with_one_token_are_refused(edge: Edge) -> None:
    gateway = await edge.link()

    twice = Streams(outlets=(outlet(TOKEN, "codes"), outlet(TOKEN, "text")))
    number = await gateway.open(streams=twice)

    error = await gateway.failed(number)
    assert type(error.error) is InvalidRequest
    assert error.error.field == "outlets"
    await edge.settles()


@pytest.mark.parametrize("computed", [False, True], ids=["running", "computed"])
async def test_a_deadline_ends_both_ends_of_the_edge(edge: Edge, *, computed: bool) -> None:
    gateway, consumer = await edge.link(), await edge.link()
    number, run = await edge.open(gateway, outlet(TOKEN, "codes"), seconds=0.2)
    taking = await edge.subscribe(consumer, credit=0)
    run.outputs.emit(CODES, rows(1))
    if computed:
        run.finish()

    for client, asked in ((consumer, taking), (gateway, number)):
        assert type((await client.failed(asked)).error) is DeadlineExceeded
    await edge.settles()


async def test_a_subscription_has_a_deadline_of_its_own(edge: Edge) -> None:
    gateway, consumer = await edge.link(), await edge.link()
    number, run = await edge.open(gateway, outlet(TOKEN, "codes"))
    taking = await edge.subscribe(consumer, seconds=0.05)

    assert type((await consumer.failed(taking)).error) is DeadlineExceeded

    run.finish()
    await gateway.ended(number)
    await edge.settles()


async def test_held_tensors_of_a_subscription_end_at_its_deadline(edge: Edge) -> None:
    gateway, consumer = await edge.link(), await edge.link()
    number, run = await edge.open(gateway, outlet(TOKEN, "codes"), withheld=("codes",))
    taking = await edge.subscribe(consumer, seconds=0.2)
    await run.outputs.put(CODES, BIG)
    run.finish()
    await consumer.ended(taking)

    await gateway.ended(number)

    await edge.settles()
    assert len(consumer.frames[taking]) == 2, "nothing more was said about it"


@pytest.mark.parametrize(
    ("phase", "refusal"), [(Phase.DRAINING, Draining), (Phase.FAILED, StageUnavailable)]
)
async def test_a_replica_that_goes_refuses_consumers_whose_request_has_not_come(
    edge: Edge, phase: Phase, refusal: type[OmnistageError]
) -> None:
    async with one_consumer(edge) as (gateway, number, run, consumer, taking):
        waiting = await edge.subscribe(consumer, "early")
        await until(lambda: len(edge.replica.outlets) == 2)

        edge.replica.lifecycle.enter(phase)
        late = await edge.subscribe(consumer, "late")

        for asked in (waiting, late):
            assert type((await consumer.failed(asked)).error) is refusal
        run.outputs.emit(CODES, rows(1))
        run.finish()
        await consumer.ended(taking)
        await gateway.ended(number)


async def test_a_consumer_may_still_come_to_a_draining_replica(edge: Edge) -> None:
    gateway, consumer = await edge.link(), await edge.link()
    number, run = await edge.open(gateway, outlet(TOKEN, "codes"))
    edge.replica.lifecycle.enter(Phase.DRAINING)

    taking = await edge.subscribe(consumer)
    run.outputs.emit(CODES, rows(1))
    run.finish()

    await consumer.ended(taking)
    await gateway.ended(number)


async def test_a_drain_waits_for_consumers(replica: Replica, engine: ScriptedEngine) -> None:
    drain = Drain(replica.lifecycle)
    links = [Link(replica, changed=drain.changed) for _ in range(2)]
    for link in links:
        drain.joined(link)
    async with (
        memory_link(replica, link=links[0]) as (gateway, _),
        memory_link(replica, link=links[1]) as (consumer, _),
    ):
        number = await gateway.open(streams=Streams(outlets=(outlet(TOKEN, "codes"),)))
        run = await engine.started(gateway.id_of(number))
        taking = await consumer.subscribe(TOKEN, replica.incarnation, credit=0)
        run.outputs.emit(CODES, rows(1))
        run.finish()
        draining = asyncio.create_task(drain.run(None))
        await consumer.phase(Phase.DRAINING)
        assert not draining.done()

        await consumer.credit(taking, 1)

        assert await draining == 0
        assert isinstance(consumer.frames[taking][-1], End)
        assert isinstance(gateway.frames[number][-1], End)
