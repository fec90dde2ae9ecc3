"""A stage process at both ends of the tensor plane: what it reads by which way, and what it says of it."""

import asyncio
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import msgspec
import pytest

from fakes.link_client import grpc_link
from fakes.stage_process import StageProcess, stage_plan
from fakes.tensor_process import MIB, TensorProcess, bytes_of
from omnistage_common.channels import CHANNEL_OPTIONS
from omnistage_common.deadlines import Deadline
from omnistage_common.ids import HostId, OutputName, new_incarnation
from omnistage_common.payloads import Output, Payload, PayloadKind, TensorRef
from omnistage_common.pipeline.plan import TransportChoice
from omnistage_common.tensors import TensorPlane, TransportKind
from omnistage_protos.stage.v1 import stage_pb2, stage_pb2_grpc
from omnistage_protos.tensor.v1 import tensor_pb2

HUMMING = {"steps": 1, "step_seconds": 0.0, "outputs": {"audio": {"shape": [MIB]}}}
"""A megabyte of silence."""


@pytest.fixture
def producer(tmp_path: Path) -> Iterator[TensorProcess]:
    """Its segment is in a folder that the stage does not look into."""
    process = TensorProcess(tmp_path)
    yield process
    process.kill()


def stage_by(choice: TransportChoice, folder: Path) -> StageProcess:
    plan = stage_plan(HUMMING, {"audio": PayloadKind.WAVEFORM})
    return StageProcess(msgspec.structs.replace(plan, transport=choice), folder)


@pytest.fixture(params=[TransportChoice.AUTO, TransportChoice.STREAM])
def choice(request: pytest.FixtureRequest) -> TransportChoice:
    """What the pipeline says about transport."""
    chosen: TransportChoice = request.param
    return chosen


@pytest.fixture
def stage(choice: TransportChoice, tmp_path: Path) -> Iterator[StageProcess]:
    process = stage_by(choice, tmp_path)
    yield process
    process.end()


def recording(ref: TensorRef) -> Output:
    payload = Payload(kind=PayloadKind.WAVEFORM, content=ref)
    return Output(name=OutputName("audio"), payload=payload)


async def described(stage: StageProcess) -> stage_pb2.DescribeResponse:
    async with grpc.aio.insecure_channel(stage.address, options=CHANNEL_OPTIONS) as channel:
        stub = stage_pb2_grpc.StageServiceStub(channel)
        return await stub.Describe(stage_pb2.DescribeRequest(), timeout=5)


async def metrics_of(stage: StageProcess) -> dict[str, float]:
    """Samples of the tensor plane by name and labels."""

    def read() -> str:
        with urllib.request.urlopen(stage.metrics_url, timeout=5) as answer:  # noqa: S310
            return str(answer.read(), "utf-8")

    lines = (await asyncio.to_thread(read)).splitlines()
    samples = (line.rpartition(" ") for line in lines if line.startswith("omnistage_stage_tensor"))
    return {name.removeprefix("omnistage_stage_"): float(value) for name, _, value in samples}


async def test_a_stage_reads_its_inputs_by_the_way_of_its_pipeline_and_says_so(
    choice: TransportChoice, stage: StageProcess, producer: TensorProcess
) -> None:
    await stage.said("ready")
    async with grpc_link(stage.address) as client:
        for _ in range(2):
            number = await client.open(recording(producer.publish(MIB, 1)))
            await client.ended(number)
            await client.release(number)
        found = await described(stage)

    (peer,) = found.tensor_peers
    assert (peer.address, peer.tensors, peer.bytes) == (producer.address, 2, 2 * MIB)
    metrics = await metrics_of(stage)
    if choice is TransportChoice.AUTO:
        assert peer.transport == tensor_pb2.TRANSPORT_TCP
        assert "shared_memory: segment" in peer.fallback
        assert metrics['tensor_fallbacks_total{transport="shared_memory"}'] == 1
        assert sum("tensor transport falls back" in line for line in stage.log) == 2
    else:
        assert (peer.transport, peer.fallback) == (tensor_pb2.TRANSPORT_STREAM, "")
    way = "tcp" if choice is TransportChoice.AUTO else "stream"
    assert metrics[f'tensors_total{{transport="{way}"}}'] == 2
    assert metrics[f'tensor_bytes_total{{transport="{way}"}}'] == 2 * MIB
    assert metrics["tensor_leases"] == metrics["tensor_slab_used_bytes"] == 0


@pytest.mark.parametrize("choice", [TransportChoice.SHARED_MEMORY], indirect=True)
async def test_a_request_whose_input_is_out_of_reach_ends_with_a_reason(
    stage: StageProcess, producer: TensorProcess
) -> None:
    await stage.said("ready")
    async with grpc_link(stage.address) as client:
        number = await client.open(recording(producer.publish(MIB, 1)))
        ended = await client.failed(number)

    assert ended.error.code == "tensor_lost"
    assert "allowed: shared_memory" in ended.error.message
    assert "has another folder there" in ended.error.message


@pytest.mark.parametrize("choice", [TransportChoice.AUTO], indirect=True)
@pytest.mark.parametrize("kind", [TransportKind.TCP, TransportKind.STREAM])
async def test_the_output_of_a_stage_is_read_from_another_host(
    kind: TransportKind, stage: StageProcess
) -> None:
    await stage.said("ready")
    consumer = TensorPlane(
        incarnation=new_incarnation(),
        host=HostId("elsewhere"),
        slab_bytes=4 * MIB,
        transports=(kind,),
    )
    async with grpc_link(stage.address) as client:
        number = await client.open()
        await client.ended(number)
        ref = client.outputs(number)[-1].payload.content
        assert isinstance(ref, TensorRef)
        assert ref.address == stage.address
        tensor = await consumer.fetch(ref, owner="a", deadline=Deadline.after(10))
        assert tensor.data == bytes(MIB) != bytes_of(MIB)
        await client.release(number)
    consumer.close()


async def test_a_stage_that_moves_nothing_over_a_network_does_not_load_the_engine(
    stage: StageProcess,
) -> None:
    await stage.said("ready")
    pid = (await described(stage)).pid

    assert "mooncake" not in await asyncio.to_thread(Path(f"/proc/{pid}/maps").read_text)


async def test_a_stage_whose_engine_has_no_device_does_not_start_with_memory_of_one(
    tmp_path: Path,
) -> None:
    plan = stage_plan(HUMMING, {"audio": PayloadKind.WAVEFORM})
    (stage,) = plan.stages
    limits = msgspec.structs.replace(stage.limits, device_slab_bytes=MIB)
    changed = msgspec.structs.replace(stage, limits=limits)
    process = StageProcess(msgspec.structs.replace(plan, stages=(changed,)), tmp_path)

    try:
        assert await process.exit_code() != 0
        refused = await process.said("cannot start")
        assert "its engine 'simulated' has no device memory to give" in refused["error"]
        assert "`limits.deviceSlabBytes`" in refused["error"]
    finally:
        process.end()
