"""A link: every request on it runs, ends and is cleaned up by itself, however it ends."""

import asyncio
from collections.abc import Callable

import pytest

from fakes.frames import reference, tensor, text_output
from fakes.link_client import memory_link
from fakes.scripted_engine import ScriptedEngine
from omnistage_common.errors import (
    DeadlineExceeded,
    Draining,
    EngineFailed,
    InvalidRequest,
    OmnistageError,
    ProtocolViolation,
    StageUnavailable,
    TensorLost,
    TooManyRequests,
)
from omnistage_common.ids import OutputName, RequestNumber
from omnistage_common.links.frames import (
    Cancel,
    Delivery,
    FinishReason,
    Phase,
    Release,
    Status,
)
from omnistage_common.links.protocol import RequestState
from omnistage_common.payloads import Payload, PayloadKind
from omnistage_stage.engines.protocol import EngineResult
from omnistage_stage.service.draining import Drain
from omnistage_stage.service.link import Link
from omnistage_stage.service.replica import Replica

SAID = OutputName("text")
SOUND = OutputName("audio")
BIG = Payload(kind=PayloadKind.WAVEFORM, content=tensor(1 << 20))
NewReplica = Callable[..., Replica]
Counted = Callable[[str], float]


def piece(text: str) -> Payload:
    """A piece of text."""
    return Payload(kind=PayloadKind.TEXT, content=text)


async def until(condition: Callable[[], bool]) -> None:
    """Lets the others on; what is waited for takes a few turns and no time."""
    for _ in range(100):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("not within a hundred turns of the event loop")


async def test_a_request_is_opened_answered_and_forgotten(
    replica: Replica, engine: ScriptedEngine, counted: Counted
) -> None:
    async with memory_link(replica) as (client, _):
        number = await client.open(text_output("hello"))
        run = await engine.started(client.id_of(number))
        assert run.request.inputs[SAID] == (text_output("hello").payload,)
        run.outputs.emit(SAID, piece("wor"))
        await client.until(lambda: client.text(number) == "wor")
        run.outputs.emit(SAID, piece("ld"))
        run.finish(EngineResult(finish_reason=FinishReason.STOP, input_tokens=1, output_tokens=2))

        end = await client.ended(number)

        assert client.text(number) == "world"
        assert (end.finish_reason, end.usage.output_tokens) == (FinishReason.STOP, 2)
        assert client.opener.state(number) is None
        await until(lambda: replica.admission.running == 0)
        assert counted("done") == 1


async def test_the_first_frame_says_what_the_replica_is(replica: Replica) -> None:
    async with memory_link(replica) as (client, _):
        await client.open()
        await client.phase(Phase.READY)

    assert isinstance(client.first, Status)
    assert client.first.incarnation == replica.incarnation
    assert client.first.host == replica.host


async def test_every_change_of_phase_is_announced(make_replica: NewReplica) -> None:
    replica = make_replica(phase=Phase.LOADING)
    async with memory_link(replica) as (client, _):
        await client.phase(Phase.LOADING)
        for phase in (Phase.READY, Phase.DRAINING, Phase.FAILED):
            replica.lifecycle.enter(phase, "because")
            await client.phase(phase)

    assert [status.message for status in client.statuses] == ["", *["because"] * 3]


@pytest.mark.parametrize(
    ("phase", "refusal"),
    [
        (Phase.LOADING, StageUnavailable),
        (Phase.DRAINING, Draining),
        (Phase.FAILED, StageUnavailable),
    ],
)
async def test_a_replica_that_is_not_ready_refuses(
    make_replica: NewReplica,
    engine: ScriptedEngine,
    phase: Phase,
    refusal: type[OmnistageError],
) -> None:
    async with memory_link(make_replica(phase=phase)) as (client, _):
        error = await client.failed(await client.open())

    assert type(error.error) is refusal
    assert engine.runs == {}


async def test_a_draining_replica_refuses_the_new_and_finishes_the_running(
    replica: Replica, engine: ScriptedEngine
) -> None:
    async with memory_link(replica) as (client, _):
        running = await client.open()
        run = await engine.started(client.id_of(running))
        replica.lifecycle.enter(Phase.DRAINING)

        late = await client.failed(await client.open())
        run.outputs.emit(SAID, piece("still here"))
        run.finish()
        await client.ended(running)

    assert type(late.error) is Draining
    assert client.text(running) == "still here"


async def test_cancel_stops_the_engine_frees_the_place_and_is_not_answered(
    make_replica: NewReplica, engine: ScriptedEngine, counted: Counted
) -> None:
    replica = make_replica(max_running=1)
    async with memory_link(replica) as (client, _):
        unwanted, next_one = await client.open(), await client.open()
        run = await engine.started(client.id_of(unwanted))
        await run.outputs.put(SOUND, BIG)
        await client.until(lambda: bool(client.data(unwanted)))

        await client.cancel(unwanted)
        successor = await engine.started(client.id_of(next_one))

        assert run.cancelled
        assert replica.plane.statistics().leases == 0
        assert (replica.admission.running, replica.admission.queued) == (1, 0)
        successor.finish()
        await client.ended(next_one)
        assert len(client.frames[unwanted]) == 1
        assert (counted("cancelled"), counted("done")) == (1, 1)


async def test_a_request_cancelled_in_the_queue_leaves_it(
    make_replica: NewReplica, engine: ScriptedEngine
) -> None:
    replica = make_replica(max_running=1, max_queued=1)
    async with memory_link(replica) as (client, _):
        running, waiting = await client.open(), await client.open()
        run = await engine.started(client.id_of(running))

        await client.cancel(waiting)

        await until(lambda: replica.admission.queued == 0)
        assert replica.admission.running == 1
        assert not run.cancelled
        run.finish()
        await client.ended(running)
        assert list(engine.runs) == [client.id_of(running)]


async def test_a_place_in_the_queue_is_free_in_the_message_that_cancels_it(
    make_replica: NewReplica, engine: ScriptedEngine
) -> None:
    replica = make_replica(max_running=1, max_queued=1)
    async with memory_link(replica) as (client, _):
        running, waiting = await client.open(), await client.open()
        run = await engine.started(client.id_of(running))
        successor = client.next_open()

        await client.send(client.opener.cancel(waiting, "never mind"), successor)

        run.finish()
        await client.ended(running)
        (await engine.started(client.id_of(successor.request))).finish()
        await client.ended(successor.request)


async def test_a_request_cancelled_in_the_message_that_opened_it_never_runs(
    replica: Replica, engine: ScriptedEngine
) -> None:
    async with memory_link(replica) as (client, _):
        opened = client.next_open()
        await client.send(opened, client.opener.cancel(opened.request, "never mind"))
        marker = await client.open()
        (await engine.started(client.id_of(marker))).finish()
        await client.ended(marker)

        await until(lambda: replica.admission.running == 0)
        assert list(engine.runs) == [client.id_of(marker)]


async def test_a_full_queue_refuses_at_once(
    make_replica: NewReplica, engine: ScriptedEngine, counted: Counted
) -> None:
    replica = make_replica(max_running=1, max_queued=1)
    async with memory_link(replica) as (client, _):
        numbers = [await client.open() for _ in range(3)]

        refused = await client.failed(numbers[2])

        assert type(refused.error) is TooManyRequests
        assert refused.error.retry_after is not None
        assert counted("too_many_requests") == 1
        for number in numbers[:2]:
            (await engine.started(client.id_of(number))).finish()
            await client.ended(number)


async def test_queued_requests_run_in_the_order_they_came(
    make_replica: NewReplica, engine: ScriptedEngine
) -> None:
    replica = make_replica(max_running=1, max_queued=8)
    async with memory_link(replica) as (client, _):
        numbers = [await client.open() for _ in range(5)]
        for number in numbers:
            (await engine.started(client.id_of(number))).finish()
            await client.ended(number)

    assert list(engine.runs) == [client.id_of(number) for number in numbers]


async def test_a_deadline_cancels_the_engine_and_is_reported(
    replica: Replica, engine: ScriptedEngine
) -> None:
    async with memory_link(replica) as (client, _):
        number = await client.open(seconds=0.05)
        run = await engine.started(client.id_of(number))
        await run.outputs.put(SOUND, BIG)

        late = await client.failed(number)

        assert type(late.error) is DeadlineExceeded
        assert run.cancelled
        assert replica.plane.statistics().leases == 0


async def test_a_deadline_passes_in_the_queue_too(
    make_replica: NewReplica, engine: ScriptedEngine
) -> None:
    replica = make_replica(max_running=1)
    async with memory_link(replica) as (client, _):
        running, waiting = await client.open(), await client.open(seconds=0.05)

        late = await client.failed(waiting)

        assert type(late.error) is DeadlineExceeded
        assert replica.admission.queued == 0
        (await engine.started(client.id_of(running))).finish()
        await client.ended(running)


async def test_a_deadline_that_has_passed_on_arrival_costs_nothing(
    replica: Replica, engine: ScriptedEngine
) -> None:
    async with memory_link(replica) as (client, _):
        late = await client.failed(await client.open(seconds=-1.0))

    assert type(late.error) is DeadlineExceeded
    assert engine.runs == {}


@pytest.mark.parametrize(
    "raised",
    [ValueError("no such voice"), TimeoutError(), KeyError("x"), EngineFailed("out of memory")],
)
async def test_whatever_an_engine_raises_is_a_failed_engine_and_has_it_probed(
    replica: Replica, engine: ScriptedEngine, counted: Counted, raised: Exception
) -> None:
    async with memory_link(replica) as (client, _):
        healthy, failing = await client.open(), await client.open()
        run = await engine.started(client.id_of(failing))
        run.outputs.emit(SAID, piece("so far"))

        run.fail(raised)

        error = await client.failed(failing)
        assert type(error.error) is EngineFailed
        assert replica.suspect.is_set()
        assert counted("engine_failed") == 1
        (await engine.started(client.id_of(healthy))).finish()
        await client.ended(healthy)


async def test_an_engine_that_is_cancelled_by_itself_has_failed(
    replica: Replica, engine: ScriptedEngine
) -> None:
    async with memory_link(replica) as (client, _):
        number = await client.open()

        (await engine.started(client.id_of(number))).drop()

        error = await client.failed(number)
        assert type(error.error) is EngineFailed
        assert replica.suspect.is_set()


async def test_a_clients_mistake_is_its_own_and_raises_no_suspicion(
    replica: Replica, engine: ScriptedEngine
) -> None:
    async with memory_link(replica) as (client, _):
        number = await client.open()
        run = await engine.started(client.id_of(number))

        run.fail(InvalidRequest("voice is unknown", field="audio.voice"))

        error = await client.failed(number)
        assert type(error.error) is InvalidRequest
        assert error.error.field == "audio.voice"
        assert not replica.suspect.is_set()


async def test_a_lost_input_fails_its_request_only(
    replica: Replica, engine: ScriptedEngine
) -> None:
    async with memory_link(replica) as (client, _):
        lost, fine = await client.open(reference()), await client.open()

        assert type((await client.failed(lost)).error) is TensorLost
        (await engine.started(client.id_of(fine))).finish()
        await client.ended(fine)


async def test_a_large_output_is_held_until_it_is_released(
    replica: Replica, engine: ScriptedEngine
) -> None:
    async with memory_link(replica) as (client, _):
        number = await client.open()
        run = await engine.started(client.id_of(number))
        await run.outputs.put(SOUND, BIG)
        run.finish()
        await client.ended(number)
        assert client.opener.state(number) is RequestState.HELD
        assert replica.plane.statistics().leases == 1

        await client.release(number)

        await until(lambda: replica.plane.statistics().leases == 0)


@pytest.mark.parametrize("delivery", Delivery)
async def test_without_credit_the_answer_waits_and_credit_brings_it(
    replica: Replica, engine: ScriptedEngine, delivery: Delivery
) -> None:
    async with memory_link(replica) as (client, _):
        number = await client.open(credit=0, delivery=delivery)
        run = await engine.started(client.id_of(number))
        run.outputs.emit(SAID, piece("patience"))
        run.finish()
        await until(lambda: replica.admission.running == 0)
        assert client.frames[number] == []

        await client.credit(number, 1)

        await client.ended(number)
        assert client.text(number) == "patience"


async def test_held_tensors_that_nobody_releases_end_at_the_deadline(
    replica: Replica, engine: ScriptedEngine
) -> None:
    drain = Drain(replica.lifecycle)
    link = Link(replica, changed=drain.changed)
    drain.joined(link)
    async with memory_link(replica, link=link) as (client, _):
        number = await client.open(seconds=0.2)
        run = await engine.started(client.id_of(number))
        await run.outputs.put(SOUND, BIG)
        run.finish()
        await client.ended(number)

        assert await drain.run(None) == 0

    assert link.open_requests == 0
    assert replica.plane.statistics().leases == 0


async def test_an_answer_that_never_gets_credit_ends_at_the_deadline(
    replica: Replica, engine: ScriptedEngine, counted: Counted
) -> None:
    drain = Drain(replica.lifecycle)
    link = Link(replica, changed=drain.changed)
    drain.joined(link)
    async with memory_link(replica, link=link) as (client, _):
        number = await client.open(credit=0, seconds=0.2)
        run = await engine.started(client.id_of(number))
        run.outputs.emit(SAID, piece("for nobody"))
        run.finish()

        assert await drain.run(None) == 0

        assert client.frames[number] == []
        assert counted("cancelled") == 0


async def test_a_slow_consumer_stops_its_engine_and_nobody_elses(
    replica: Replica, engine: ScriptedEngine
) -> None:
    async with memory_link(replica) as (client, _):
        slow, quick = await client.open(credit=1), await client.open(credit=1)
        run = await engine.started(client.id_of(slow))
        for text in "ab":
            await run.outputs.put(SAID, piece(text))
            await client.until(lambda: client.text(slow) != "")
        blocked = asyncio.create_task(run.outputs.put(SAID, piece("c")))
        (await engine.started(client.id_of(quick))).finish()
        await client.ended(quick)
        assert not blocked.done()

        await client.credit(slow, 1)
        await blocked
        run.finish()
        await client.credit(slow, 1)
        await client.ended(slow)

    assert client.text(slow) == "abc"


async def test_a_request_that_was_done_is_not_counted_as_cancelled_too(
    replica: Replica, engine: ScriptedEngine, counted: Counted
) -> None:
    async with memory_link(replica) as (client, _):
        unread, unreleased = await client.open(credit=0), await client.open()
        for number in (unread, unreleased):
            run = await engine.started(client.id_of(number))
            await run.outputs.put(SOUND, BIG)
            run.finish()
        await client.ended(unreleased)

        for number in (unread, unreleased):
            await client.cancel(number)

        await until(lambda: replica.plane.statistics().leases == 0)
        assert (counted("done"), counted("cancelled")) == (2, 0)


@pytest.mark.parametrize("many", [100])
async def test_a_link_that_breaks_leaves_nothing_behind(
    make_replica: NewReplica, engine: ScriptedEngine, counted: Counted, many: int
) -> None:
    replica = make_replica(max_running=many // 2, max_queued=many)
    before = asyncio.all_tasks()
    async with memory_link(replica) as (client, serving):
        numbers = [await client.open(delivery=Delivery.FINAL) for _ in range(many)]
        await engine.until(lambda: engine.running == many // 2)
        for run in list(engine.runs.values())[:4]:
            await run.outputs.put(SOUND, BIG)
        assert replica.plane.statistics().leases == 4
        assert len(numbers) == replica.admission.running + replica.admission.queued

        serving.cancel()
        await asyncio.wait((serving,))

        assert engine.running == 0
        assert all(run.cancelled for run in engine.runs.values())
        assert len(engine.runs) == many // 2
        assert (replica.admission.running, replica.admission.queued) == (0, 0)
        assert replica.plane.statistics().leases == 0
        assert asyncio.all_tasks() - before == set()
        assert counted("cancelled") == many


async def test_requests_of_other_links_do_not_notice_a_break(
    replica: Replica, engine: ScriptedEngine
) -> None:
    async with memory_link(replica) as (client, _):
        number = await client.open()
        run = await engine.started(client.id_of(number))
        async with memory_link(replica) as (other, _):
            await engine.started(other.id_of(await other.open()))
        run.finish()
        await client.ended(number)


@pytest.mark.parametrize(
    "offence",
    [Cancel(request=RequestNumber(2), reason="never opened"), Release(request=RequestNumber(1))],
)
async def test_a_peer_that_breaks_the_protocol_loses_its_link(
    replica: Replica, engine: ScriptedEngine, offence: Cancel | Release
) -> None:
    async with memory_link(replica) as (client, _):
        number = await client.open()
        run = await engine.started(client.id_of(number))

        await client.send(offence)

        assert isinstance(await client.until_over(), ProtocolViolation)
        assert run.cancelled


async def test_a_finished_link_writes_what_is_ready_and_ends_well(
    replica: Replica, engine: ScriptedEngine
) -> None:
    drain = Drain(replica.lifecycle)
    link = Link(replica, changed=drain.changed)
    drain.joined(link)
    async with memory_link(replica, link=link) as (client, _):
        number = await client.open(delivery=Delivery.FINAL)
        run = await engine.started(client.id_of(number))
        draining = asyncio.create_task(drain.run(None))
        await client.phase(Phase.DRAINING)
        run.outputs.emit(SAID, piece("goodbye"))
        run.finish()

        assert await draining == 0
        assert await client.until_over() is None

    assert client.text(number) == "goodbye"
    assert client.opener.state(number) is None


async def test_a_drain_waits_for_held_tensors(replica: Replica, engine: ScriptedEngine) -> None:
    drain = Drain(replica.lifecycle)
    link = Link(replica, changed=drain.changed)
    drain.joined(link)
    async with memory_link(replica, link=link) as (client, _):
        number = await client.open()
        run = await engine.started(client.id_of(number))
        await run.outputs.put(SOUND, BIG)
        run.finish()
        await client.ended(number)
        draining = asyncio.create_task(drain.run(None))
        await client.phase(Phase.DRAINING)
        assert not draining.done()

        await client.release(number)

        assert await draining == 0
