"""A real stage process, spoken to as a gateway does: over gRPC, by the link protocol."""

import asyncio
import os
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from fakes.frames import text_output
from fakes.grpc_doors import is_serving, service_names
from fakes.link_client import grpc_link
from fakes.stage_process import STAGE, StageProcess, stage_plan
from omnistage_common.channels import CHANNEL_OPTIONS
from omnistage_common.deadlines import Deadline
from omnistage_common.ids import new_incarnation, this_host
from omnistage_common.links.frames import Cancel, FinishReason, Open, Phase, Release
from omnistage_common.payloads import Parameters, PayloadKind, TensorRef
from omnistage_common.tensors import TensorPlane
from omnistage_protos.stage.v1 import stage_pb2, stage_pb2_grpc
from omnistage_protos.tensor.v1 import tensor_pb2, tensor_pb2_grpc

StartStage = Callable[..., StageProcess]

MIB = 1 << 20
ASKINGS = 500
LONG = Parameters(max_tokens=1000)
"""Twenty seconds of singing."""
HEALTH = "grpc.health.v1.Health"


@asynccontextmanager
async def channel_to(process: StageProcess) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a process that is listening, or is about to."""
    async with grpc.aio.insecure_channel(process.address, options=CHANNEL_OPTIONS) as channel:
        await asyncio.wait_for(channel.channel_ready(), 20)
        yield channel


@pytest.fixture
async def channel(singer: StageProcess) -> AsyncIterator[grpc.aio.Channel]:
    await singer.said("ready")
    async with channel_to(singer) as opened:
        yield opened


async def describe(channel: grpc.aio.Channel) -> stage_pb2.DescribeResponse:
    """What the replica says of itself."""
    stub = stage_pb2_grpc.StageServiceStub(channel)
    return await stub.Describe(stage_pb2.DescribeRequest(), timeout=5)


async def occupancy_becomes(
    channel: grpc.aio.Channel, condition: Callable[[stage_pb2.Occupancy], bool]
) -> None:
    """Asks again until it is so; the replica needs no longer than it takes to hear of it."""
    for _ in range(ASKINGS):
        found = (await describe(channel)).occupancy
        if condition(found):
            return
    raise AssertionError(f"after {ASKINGS} askings still {found}")


def idle(occupancy: stage_pb2.Occupancy) -> bool:
    """Whether nothing is held."""
    held = (occupancy.running, occupancy.queued, occupancy.open_requests, occupancy.leases)
    return held == (0, 0, 0, 0) and occupancy.slab_bytes == 0


async def metrics_of(process: StageProcess) -> dict[str, float]:
    """Samples by name and labels."""

    def read() -> str:
        with urllib.request.urlopen(process.metrics_url, timeout=5) as answer:  # noqa: S310
            return str(answer.read(), "utf-8")

    lines = (await asyncio.to_thread(read)).splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


async def test_every_service_is_listed_by_reflection(channel: grpc.aio.Channel) -> None:
    assert await service_names(channel) == {
        "omnistage.stage.v1.StageService",
        "omnistage.tensor.v1.TensorService",
        HEALTH,
        "grpc.reflection.v1alpha.ServerReflection",
    }


async def test_a_request_is_sung_to_its_end(
    singer: StageProcess, channel: grpc.aio.Channel
) -> None:
    async with grpc_link(singer.address) as client:
        number = await client.open(text_output("sing"))
        end = await client.ended(number)

        assert client.text(number) == "la la la "
        assert end.finish_reason is FinishReason.LENGTH
        assert end.usage.output_tokens == 3
        assert end.usage.run_us > end.usage.first_output_us > 0

    await occupancy_becomes(channel, idle)


async def test_describe_counts_what_is_there(
    singer: StageProcess, channel: grpc.aio.Channel
) -> None:
    before = await describe(channel)
    async with grpc_link(singer.address) as client:
        numbers = [await client.open(parameters=LONG) for _ in range(3)]
        await client.until(lambda: bool(client.text(numbers[0])))
        during = await describe(channel)
        assert (during.occupancy.running, during.occupancy.queued) == (2, 1)
        assert during.occupancy.open_requests == 3

        for number in numbers:
            await client.cancel(number)
        await occupancy_becomes(channel, idle)

    await occupancy_becomes(channel, lambda now: now.tasks <= before.occupancy.tasks)
    assert (during.stage, during.engine) == (STAGE, "simulated")
    assert during.phase == stage_pb2.PHASE_READY
    assert during.host == this_host()
    assert os.getsid(during.pid) == os.getsid(0)
    assert during.resident_bytes > MIB


async def test_the_wait_for_a_place_is_measured(
    singer: StageProcess, channel: grpc.aio.Channel
) -> None:
    del channel
    before = await metrics_of(singer)
    async with grpc_link(singer.address) as client:
        numbers = [await client.open() for _ in range(3)]
        ends = [await client.ended(number) for number in numbers]
    after = await metrics_of(singer)

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert ends[2].usage.queue_us > max(ends[0].usage.run_us, ends[1].usage.run_us) / 2
    assert grown("omnistage_stage_queue_wait_seconds_count") == 3
    assert grown("omnistage_stage_queue_wait_seconds_sum") == pytest.approx(
        sum(end.usage.queue_us for end in ends) / 1e6, abs=3e-6
    )
    assert grown('omnistage_stage_requests_total{outcome="done"}') == 3
    assert grown('omnistage_stage_tokens_total{direction="output"}') == 9
    assert after["process_resident_memory_bytes"] > MIB


async def test_the_wait_is_known_while_the_request_still_runs(start_stage: StartStage) -> None:
    long = {
        "steps": 1000,
        "step_seconds": 0.05,
        "outputs": {"text": {"text": "la", "when": "step"}},
    }
    process = start_stage(plan=stage_plan(long, {"text": PayloadKind.TEXT}))
    await process.said("ready")
    async with grpc_link(process.address) as client:
        number = await client.open()
        await client.until(lambda: client.text(number) != "")

        assert (await metrics_of(process))["omnistage_stage_queue_wait_seconds_count"] == 1


async def test_a_large_tensor_is_read_where_the_stage_wrote_it(
    singer: StageProcess, channel: grpc.aio.Channel
) -> None:
    plane = TensorPlane(incarnation=new_incarnation(), host=this_host(), slab_bytes=0)
    async with grpc_link(singer.address) as client:
        number = await client.open()
        await client.ended(number)
        ref = client.outputs(number)[-1].payload.content
        assert isinstance(ref, TensorRef)
        tensor = await plane.fetch(ref, owner="test", deadline=Deadline.after(5))
        assert bytes(tensor.data) == bytes(MIB)
        assert (await describe(channel)).occupancy.leases == 1
        assert len(singer.segments) == 1

        await client.release(number)

        await occupancy_becomes(channel, idle)
    del tensor
    plane.close()


async def test_a_link_that_breaks_takes_its_leases_and_requests_with_it(
    singer: StageProcess, channel: grpc.aio.Channel
) -> None:
    async with grpc_link(singer.address) as client:
        await client.ended(await client.open())
        running = await client.open(parameters=LONG)
        await client.until(lambda: bool(client.text(running)))
        found = (await describe(channel)).occupancy
        assert (found.leases, found.running, found.open_requests) == (1, 1, 2)

    await occupancy_becomes(channel, idle)


async def test_tensors_are_negotiated_and_released_by_their_service(
    singer: StageProcess, channel: grpc.aio.Channel
) -> None:
    stub = tensor_pb2_grpc.TensorServiceStub(channel)
    shared = tensor_pb2.TRANSPORT_SHARED_MEMORY
    answer = await stub.Negotiate(
        tensor_pb2.NegotiateRequest(host=this_host(), transports=[shared])
    )
    assert answer.transport == shared
    async with grpc_link(singer.address) as client:
        number = await client.open()
        await client.ended(number)
        ref = client.outputs(number)[-1].payload.content
        assert isinstance(ref, TensorRef)
        assert ref.incarnation == answer.incarnation
        release = tensor_pb2.ReleaseRequest(incarnation=ref.incarnation, leases=[ref.lease, 99999])

        assert (await stub.Release(release)).released == 1
        assert (await stub.Release(release)).released == 0

    elsewhere = tensor_pb2.NegotiateRequest(host="elsewhere", transports=[shared])
    nothing = tensor_pb2.NegotiateRequest(host=this_host())
    assert await status_of(stub.Negotiate(elsewhere)) is grpc.StatusCode.FAILED_PRECONDITION
    assert await status_of(stub.Negotiate(nothing)) is grpc.StatusCode.INVALID_ARGUMENT
    earlier = tensor_pb2.ReleaseRequest(incarnation="earlier", leases=[1])
    assert await status_of(stub.Release(earlier)) is grpc.StatusCode.FAILED_PRECONDITION


async def status_of(call: "grpc.aio.UnaryUnaryCall[Any, Any]") -> grpc.StatusCode:
    """How a call ends that does not end well."""
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await call
    return ended.value.code()


@pytest.mark.parametrize("offence", ["a stranger", "too early", "not a frame"])
async def test_a_peer_that_breaks_the_protocol_is_refused_and_others_are_not(
    singer: StageProcess, channel: grpc.aio.Channel, offence: str
) -> None:
    async with grpc_link(singer.address) as good:
        number = await good.open()
        async with grpc_link(singer.address) as bad:
            opened = await bad.open(parameters=LONG)
            if offence == "a stranger":
                await bad.send(Cancel(request=bad.opener.next_number(), reason="?"))
            elif offence == "too early":
                await bad.send(Release(request=opened))
            else:
                await bad.write(stage_pb2.LinkRequest(frames=[stage_pb2.Frame(request=1)]))
            broken = await bad.until_over()

        assert isinstance(broken, grpc.aio.AioRpcError)
        assert broken.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert broken.details()
        await good.ended(number)
        assert good.text(number) == "la la la "

    await occupancy_becomes(channel, idle)


async def test_many_requests_share_a_link_and_each_gets_its_own(
    singer: StageProcess, channel: grpc.aio.Channel
) -> None:
    async with grpc_link(singer.address) as client:
        opens: list[Open] = [
            client.next_open(parameters=Parameters(max_tokens=length)) for length in range(1, 9)
        ]
        await client.send(*opens)
        for length, frame in enumerate(opens, 1):
            await client.ended(frame.request)
            assert client.text(frame.request) == "la " * length
            await client.release(frame.request)

    await occupancy_becomes(channel, idle)


async def test_the_first_status_says_who_it_is(
    singer: StageProcess, channel: grpc.aio.Channel
) -> None:
    async with grpc_link(singer.address) as client:
        await client.phase(Phase.READY)

    assert client.statuses[0].incarnation == (await describe(channel)).incarnation


async def test_health_says_serving(channel: grpc.aio.Channel) -> None:
    assert await is_serving(channel)
