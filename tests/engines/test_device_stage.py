"""A torch stage that keeps tensors on its device says the same, bit for bit, as one that does not.

The device is a CPU: the frames come from another process's device straight into the stage's, and the
samples are read from there.
"""

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import torch
from msgspec.structs import replace

from fakes.device_tensors import made_on_device, plane_with_door, region
from fakes.link_client import LinkClient, grpc_link
from fakes.qwen3_omni import frames_payload, write_model
from fakes.stage_process import StageProcess, stage_plan
from omnistage_common.channels import CHANNEL_OPTIONS
from omnistage_common.deadlines import Deadline
from omnistage_common.ids import OutputName, RequestNumber
from omnistage_common.payloads import Output, Payload, PayloadKind, Tensor, TensorRef
from omnistage_common.pipeline.plan import ReceivePlan
from omnistage_common.tensors import TensorPlane
from omnistage_protos.stage.v1 import stage_pb2, stage_pb2_grpc
from omnistage_protos.tensor.v1 import tensor_pb2
from omnistage_stage.engines.torch.conversion import from_payload

MIB = 1 << 20
CODES = OutputName("codes")
FRAMES = 2_100
"""Their codes do not ride within a message."""
SECONDS = 120.0

StartStage = Callable[[int], StageProcess]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that can be heard."""
    return write_model(tmp_path_factory.mktemp("qwen3-omni"))


@pytest.fixture
def start_stage(folder: Path, tmp_path: Path) -> Iterator[StartStage]:
    """Starts vocoders with as much device memory for tensors."""
    started: list[StageProcess] = []

    def start(device_slab_bytes: int) -> StageProcess:
        plan = stage_plan(
            {"component": "code2wav"}, {"speech": PayloadKind.WAVEFORM}, engine="torch"
        )
        (stage,) = plan.stages
        limits = replace(stage.limits, slab_bytes=32 * MIB, device_slab_bytes=device_slab_bytes)
        changed = replace(
            stage,
            model=folder.as_uri(),
            consumes=(),
            receives=(ReceivePlan(name=CODES, kind=PayloadKind.CODEC_FRAMES),),
            limits=limits,
        )
        started.append(StageProcess(replace(plan, stages=(changed,)), tmp_path))
        return started[-1]

    yield start
    for process in started:
        process.end()


@pytest.fixture
async def talker(tmp_path: Path) -> AsyncIterator[TensorPlane]:
    """Whoever made the frames, on a device of its own."""
    async with plane_with_door(tmp_path, region(4 * MIB)) as plane:
        yield plane


async def frames(talker: TensorPlane) -> Output:
    """The codes, as a reference to where they were made."""
    codes = torch.randint(0, 512, (FRAMES, 4), generator=torch.Generator().manual_seed(1))
    content = frames_payload(codes).content
    assert isinstance(content, Tensor)
    ref = await made_on_device(talker, content, deadline=Deadline.after(SECONDS))
    return Output(name=CODES, payload=Payload(kind=PayloadKind.CODEC_FRAMES, content=ref))


async def described(stage: StageProcess) -> stage_pb2.DescribeResponse:
    async with grpc.aio.insecure_channel(stage.address, options=CHANNEL_OPTIONS) as channel:
        stub = stage_pb2_grpc.StageServiceStub(channel)
        return await stub.Describe(stage_pb2.DescribeRequest(), timeout=5)


async def device_metrics(stage: StageProcess) -> dict[str, float]:
    """What its metrics say of tensors on the device."""

    def read() -> str:
        with urllib.request.urlopen(stage.metrics_url, timeout=5) as answer:  # noqa: S310
            return str(answer.read(), "utf-8")

    prefix = "omnistage_stage_tensor_device_"
    lines = (await asyncio.to_thread(read)).splitlines()
    samples = (line.rpartition(" ") for line in lines if line.startswith(prefix))
    return {name.removeprefix(prefix): float(value) for name, _, value in samples}


async def heard(client: LinkClient, number: RequestNumber, reader: TensorPlane) -> Any:
    """All samples of an answer."""
    pieces = []
    for output in client.outputs(number):
        content = output.payload.content
        assert isinstance(content, Tensor | TensorRef)
        tensor = await reader.fetch(content, owner="ears", deadline=Deadline.after(SECONDS))
        pieces.append(from_payload(Payload(kind=PayloadKind.WAVEFORM, content=tensor)).clone())
        reader.release_owner("ears")
    return torch.cat(pieces)


async def test_samples_made_on_the_device_are_those_made_in_the_slab(
    talker: TensorPlane, start_stage: StartStage
) -> None:
    codes = await frames(talker)
    answers = []
    for device_slab_bytes in (0, 32 * MIB):
        stage = start_stage(device_slab_bytes)
        await stage.said("ready")
        async with grpc_link(stage.address) as client:
            number = await client.open(codes, seconds=SECONDS)
            await client.ended(number)
            during = await described(stage)
            counted = await device_metrics(stage)
            answers.append(await heard(client, number, talker))
            await client.release(number)
            after = await described(stage)

        (peer,) = during.tensor_peers
        assert (peer.transport, peer.on_device) == (tensor_pb2.TRANSPORT_TCP, True)
        pieces = FRAMES // 300
        occupied = during.occupancy
        if device_slab_bytes:
            assert occupied.device_leases == pieces, "every one of its samples' pieces"
            assert occupied.device_bytes > answers[-1].nbytes
            assert occupied.slab_bytes == 0, "nothing went through memory of the host"
            assert counted == {"leases": pieces, "used_bytes": occupied.device_bytes}
            assert [each.on_device for each in talker.peers()] == [False, True]
        else:
            assert (occupied.device_leases, occupied.device_bytes) == (0, 0)
            assert occupied.leases == pieces
            assert counted == {"leases": 0, "used_bytes": 0}
        assert (after.occupancy.leases, after.occupancy.device_bytes) == (0, 0)

    in_slab, on_device = answers
    assert torch.equal(in_slab, on_device)
    assert in_slab.abs().max() > 0
