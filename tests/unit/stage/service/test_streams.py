"""The producer's side of a stream edge: who gets what, when, and what is kept for whom."""

import asyncio

import pytest

from fakes.edges import BIG, CODES, SAID, TOKEN, Edge, frames_of, one_consumer, piece, until
from fakes.frames import outlet, rows
from fakes.scripted_engine import ScriptedEngine
from omnistage_common.links.frames import Delivery
from omnistage_common.links.protocol import RequestState
from omnistage_common.payloads import TensorRef


async def test_each_gets_what_is_for_it_and_the_opener_hears_of_the_end_last(edge: Edge) -> None:
    async with one_consumer(edge) as (gateway, number, run, consumer, taking):
        run.outputs.emit(CODES, rows(1))
        run.outputs.emit(SAID, piece("hello"))
        await consumer.until(lambda: frames_of(consumer, taking) == [[1]])
        run.outputs.emit(CODES, rows(2))
        run.finish()

        end = await consumer.ended(taking)
        await gateway.ended(number)

        assert frames_of(consumer, taking) == [[1], [2]]
        assert end.data_frames == len(consumer.data(taking))
        assert [output.name for output in gateway.outputs(number)] == ["text"]


async def test_an_output_that_is_not_withheld_goes_to_both(edge: Edge) -> None:
    gateway, consumer = await edge.link(), await edge.link()
    number, run = await edge.open(gateway, outlet(TOKEN, "codes"))
    taking = await edge.subscribe(consumer)
    run.outputs.emit(CODES, rows(1))
    run.finish()

    await consumer.ended(taking)
    await gateway.ended(number)

    assert frames_of(consumer, taking) == frames_of(gateway, number) == [[1]]


async def test_an_output_that_nobody_wants_is_not_even_published(edge: Edge) -> None:
    gateway = await edge.link()
    number, run = await edge.open(gateway, withheld=("codes",))

    await run.outputs.put(CODES, BIG)

    assert edge.leases == 0
    run.finish()
    assert (await gateway.ended(number)).data_frames == 0


async def test_a_consumer_may_come_before_its_request(edge: Edge) -> None:
    gateway, consumer = await edge.link(), await edge.link()
    taking = await edge.subscribe(consumer)
    await until(lambda: len(edge.replica.outlets) == 1)
    assert edge.links[1].open_requests == 1

    number, run = await edge.open(gateway, outlet(TOKEN, "codes"))
    run.outputs.emit(CODES, rows(1))

    await consumer.until(lambda: frames_of(consumer, taking) == [[1]])
    run.finish()
    await consumer.ended(taking)
    await gateway.ended(number)
    await edge.settles()


async def test_a_consumer_that_comes_late_gets_everything_from_the_start(edge: Edge) -> None:
    gateway, consumer = await edge.link(), await edge.link()
    number, run = await edge.open(gateway, outlet(TOKEN, "codes"), withheld=("codes",))
    for value in range(3):
        run.outputs.emit(CODES, rows(value))
    run.finish()
    await until(lambda: edge.replica.admission.running == 0)
    assert gateway.frames[number] == [], "the end waits for the consumer, the place does not"

    taking = await edge.subscribe(consumer)

    await consumer.ended(taking)
    await gateway.ended(number)
    assert frames_of(consumer, taking) == [[0], [1], [2]]
    await edge.settles()


async def test_two_consumers_of_one_output_share_its_tensor(edge: Edge) -> None:
    gateway, one, two = await edge.link(), await edge.link(), await edge.link()
    outlets = (outlet("a", "codes"), outlet("b", "codes", "text"))
    number, run = await edge.open(gateway, *outlets, withheld=("codes", "text"))
    first, second = await edge.subscribe(one, "a"), await edge.subscribe(two, "b")
    await run.outputs.put(CODES, BIG)
    run.outputs.emit(SAID, piece("only for b"))
    await one.until(lambda: bool(one.data(first)))
    await two.until(lambda: len(two.outputs(second)) == 2)
    assert edge.leases == 1

    await one.credit(first, 1)
    await until(lambda: edge.links[1]._acceptor.credit(first) == 64)
    assert edge.leases == 1, "the other still reads it"
    await two.credit(second, 2)
    await until(lambda: edge.leases == 0)

    run.finish()
    await one.ended(first)
    await two.ended(second)
    for client, taking in ((one, first), (two, second)):
        assert client.opener.state(taking) is RequestState.HELD
        await client.release(taking)
    await gateway.ended(number)
    assert gateway.outputs(number) == []
    await edge.settles()


async def test_an_end_with_unread_tensors_waits_for_their_release(edge: Edge) -> None:
    async with one_consumer(edge) as (gateway, number, run, consumer, taking):
        await run.outputs.put(CODES, BIG)
        run.finish()
        await consumer.ended(taking)
        assert edge.leases == 1
        assert not gateway.frames[number]

        await consumer.release(taking)

        await gateway.ended(number)
        assert edge.leases == 0


async def test_an_opener_whose_credit_releases_frees_tensors_as_it_goes(edge: Edge) -> None:
    gateway = await edge.link()
    number, run = await edge.open(gateway, credit_releases=True, credit=8)
    for _ in range(3):
        await run.outputs.put(CODES, BIG)
        await until(lambda: bool(gateway.outputs(number)))
    await gateway.until(lambda: len(gateway.outputs(number)) == 3)
    sent = len(gateway.data(number))
    assert edge.leases == 3

    await gateway.credit(number, sent)

    await until(lambda: edge.leases == 0)
    run.finish()
    await gateway.ended(number)
    await gateway.release(number)
    await edge.settles()


async def test_an_opener_keeps_its_tensors_whatever_consumers_do_with_theirs(edge: Edge) -> None:
    gateway, consumer = await edge.link(), await edge.link()
    number, run = await edge.open(gateway, outlet(TOKEN, "codes"))
    taking = await edge.subscribe(consumer)
    await run.outputs.put(CODES, BIG)
    run.finish()
    await consumer.ended(taking)
    await consumer.release(taking)

    await gateway.ended(number)

    assert edge.leases == 1
    (held,) = gateway.outputs(number)
    assert isinstance(held.payload.content, TensorRef)
    await gateway.release(number)
    await edge.settles()


async def test_a_slow_consumer_holds_put_up_and_neither_emit_nor_others(
    edge: Edge, engine: ScriptedEngine
) -> None:
    async with one_consumer(edge, credit=1) as (gateway, number, run, consumer, taking):
        other = await gateway.open()
        await run.outputs.put(CODES, rows(1))
        await consumer.until(lambda: bool(consumer.data(taking)))
        await run.outputs.put(CODES, rows(2))
        blocked = asyncio.create_task(run.outputs.put(CODES, rows(3)))
        (await engine.started(gateway.id_of(other))).finish()
        await gateway.ended(other)
        assert not blocked.done()
        run.outputs.emit(SAID, piece("on"))
        run.outputs.emit(CODES, rows(4))
        await gateway.until(lambda: gateway.text(number) == "on")
        assert not blocked.done()

        await consumer.credit(taking, 8)
        await blocked
        run.finish()
        await consumer.ended(taking)
        await gateway.ended(number)

        assert frames_of(consumer, taking) == [[1], [2], [4], [3]]


async def test_put_waits_for_a_consumer_to_come(edge: Edge) -> None:
    gateway, consumer = await edge.link(), await edge.link()
    number, run = await edge.open(gateway, outlet(TOKEN, "codes"), withheld=("codes",))
    await run.outputs.put(CODES, rows(1))
    blocked = asyncio.create_task(run.outputs.put(CODES, rows(2)))
    await asyncio.sleep(0)
    assert not blocked.done()

    taking = await edge.subscribe(consumer)

    await blocked
    run.finish()
    await consumer.ended(taking)
    await gateway.ended(number)
    assert frames_of(consumer, taking) == [[1], [2]]


async def test_put_waits_for_the_slowest_of_those_who_want_it(edge: Edge) -> None:
    gateway, one, two = await edge.link(), await edge.link(), await edge.link()
    outlets = (outlet("a", "codes"), outlet("b", "codes"))
    number, run = await edge.open(gateway, *outlets, withheld=("codes",))
    quick, slow = await edge.subscribe(one, "a"), await edge.subscribe(two, "b", credit=0)
    await run.outputs.put(CODES, rows(1))
    blocked = asyncio.create_task(run.outputs.put(CODES, rows(2)))
    await one.until(lambda: frames_of(one, quick) == [[1]])
    assert not blocked.done()

    await two.credit(slow, 2)

    await blocked
    run.finish()
    await gateway.ended(number)
    assert frames_of(one, quick) == frames_of(two, slow) == [[1], [2]]


async def test_frames_leave_in_chunks_and_gathering_holds_nobody_up(edge: Edge) -> None:
    gateway, consumer = await edge.link(), await edge.link()
    chunked = outlet(TOKEN, "codes", first_frames=2, frames=4)
    number, run = await edge.open(gateway, chunked, withheld=("codes",))
    taking = await edge.subscribe(consumer, credit=1)
    for value in range(5):
        await asyncio.wait_for(run.outputs.put(CODES, rows(value)), 1)
    await consumer.until(lambda: frames_of(consumer, taking) == [[0, 1]])
    await consumer.credit(taking, 8)
    for value in range(5, 8):
        run.outputs.emit(CODES, rows(value))
    run.finish()

    await consumer.ended(taking)
    await gateway.ended(number)

    assert frames_of(consumer, taking) == [[0, 1], [2, 3, 4, 5], [6, 7]]


@pytest.mark.parametrize("delivery", Delivery)
async def test_progress_needs_no_credit_and_the_latest_counts(
    edge: Edge, delivery: Delivery
) -> None:
    gateway = await edge.link()
    number, run = await edge.open(gateway, credit=0, delivery=delivery)
    for done in range(1, 4):
        run.outputs.progress(done, 20)
    await gateway.until(lambda: gateway.progress(number) == [(3, 20)])
    run.outputs.progress(20, 20)
    run.outputs.emit(SAID, piece("x"))
    run.finish()
    await gateway.until(lambda: gateway.progress(number)[-1] == (20, 20))
    assert gateway.data(number) == []

    await gateway.credit(number, 1)

    await gateway.ended(number)
    assert gateway.text(number) == "x"


async def test_progress_after_the_end_is_not_told(edge: Edge) -> None:
    gateway = await edge.link()
    number, run = await edge.open(gateway)
    await run.outputs.put(CODES, BIG)
    run.finish()
    await gateway.ended(number)

    run.outputs.progress(1, 2)
    marker = await gateway.open()
    await gateway.cancel(marker)
    await gateway.release(number)

    await edge.settles()
    assert gateway.progress(number) == []
