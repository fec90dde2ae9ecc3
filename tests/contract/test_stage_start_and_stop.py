"""The life of a stage process: it loads, serves, drains and ends, and says how in its exit code."""

import asyncio
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import grpc.aio
import pytest

from fakes import fragile_engine
from fakes.engine_packages import EngineEnvironment
from fakes.grpc_doors import is_serving, watch_serving
from fakes.link_client import grpc_link
from fakes.stage_process import StageProcess, stage_plan
from omnistage_common.channels import CHANNEL_OPTIONS
from omnistage_common.errors import Draining, EngineFailed, StageUnavailable
from omnistage_common.links.frames import Phase
from omnistage_common.payloads import Parameters, PayloadKind
from omnistage_common.pipeline.plan import PipelinePlan
from omnistage_protos.stage.v1 import stage_pb2, stage_pb2_grpc

StartStage = Callable[..., StageProcess]
SINGING = {"step_seconds": 0.05, "outputs": {"text": {"when": "step", "text": "la "}}}
TEXT = {"text": PayloadKind.TEXT}
LIVENESS = "omnistage.liveness"
LONG = Parameters(max_tokens=1000)
SHORT = Parameters(max_tokens=10)


def singing(**arguments: object) -> PipelinePlan:
    """A plan whose stage sings, one piece every 50 ms."""
    return stage_plan(SINGING | arguments, TEXT)


async def test_while_it_loads_it_answers_and_does_not_serve(start_stage: StartStage) -> None:
    process = start_stage(plan=singing(load_seconds=1.0))
    await process.said("listening")
    async with grpc.aio.insecure_channel(process.address, options=CHANNEL_OPTIONS) as channel:
        serving = watch_serving(channel)
        async with grpc_link(process.address) as client:
            refused = await client.failed(await client.open())
            assert type(refused.error) is StageUnavailable
            assert "still loading" in refused.error.message

            assert [await anext(serving), await anext(serving)] == [False, True]
            await client.phase(Phase.READY)
            assert [status.phase for status in client.statuses] == [Phase.LOADING, Phase.READY]
            await client.ended(await client.open())
        await serving.aclose()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_signal_drains(start_stage: StartStage, number: signal.Signals) -> None:
    process = start_stage()
    await process.said("ready")
    async with grpc_link(process.address) as client:
        held = await client.open()
        await client.ended(held)
        assert len(process.segments) == 1
        running = await client.open(parameters=Parameters(max_tokens=20))
        await client.until(lambda: bool(client.text(running)))

        process.send(number)
        await client.phase(Phase.DRAINING)
        late = await client.failed(await client.open())
        await client.ended(running)
        await client.release(running)
        await client.release(held)

        assert await process.exit_code() == 0
        assert await client.until_over() is None
    assert type(late.error) is Draining
    assert client.text(running) == "la " * 20
    assert (await process.said("drained"))["left"] == 0
    assert process.segments == []


async def test_an_idle_process_stops_at_once(start_stage: StartStage) -> None:
    process = start_stage(plan=singing())
    await process.said("ready")

    process.send(signal.SIGTERM)

    assert await process.exit_code() == 0


async def test_a_process_that_still_loads_stops_too(start_stage: StartStage) -> None:
    process = start_stage(plan=singing(load_seconds=60))
    await process.said("listening")

    process.send(signal.SIGTERM)

    assert await process.exit_code() == 0


async def test_a_second_signal_ends_it_at_once(start_stage: StartStage) -> None:
    process = start_stage(plan=singing())
    await process.said("ready")
    async with grpc_link(process.address) as client:
        running = await client.open(parameters=LONG)
        await client.until(lambda: bool(client.text(running)))
        process.send(signal.SIGTERM)
        await client.phase(Phase.DRAINING)

        process.send(signal.SIGTERM)

        assert await process.exit_code() == 130


async def test_what_outlives_the_grace_period_is_cut_off(start_stage: StartStage) -> None:
    process = start_stage(plan=stage_plan(SINGING, TEXT, drain=0.1))
    await process.said("ready")
    async with grpc_link(process.address) as client:
        running = await client.open(parameters=LONG)
        await client.until(lambda: bool(client.text(running)))

        process.send(signal.SIGTERM)

        assert await process.exit_code() == 0
        await client.until_over()
    assert (await process.said("drained"))["left"] == 1


async def test_the_drain_rpc_waits_for_what_runs_and_the_process_stays(
    start_stage: StartStage,
) -> None:
    process = start_stage(plan=singing())
    await process.said("ready")
    async with (
        grpc.aio.insecure_channel(process.address, options=CHANNEL_OPTIONS) as channel,
        grpc_link(process.address) as client,
    ):
        stub = stage_pb2_grpc.StageServiceStub(channel)
        running = await client.open(parameters=SHORT)
        await client.until(lambda: bool(client.text(running)))

        assert (await stub.Drain(stage_pb2.DrainRequest(grace_ms=1))).left == 1
        draining = asyncio.ensure_future(stub.Drain(stage_pb2.DrainRequest()))
        late = await client.failed(await client.open())
        await client.ended(running)

        assert type(late.error) is Draining
        assert (await draining).left == 0
        assert (await stub.Drain(stage_pb2.DrainRequest())).left == 0
        assert (await stub.Describe(stage_pb2.DescribeRequest())).phase == stage_pb2.PHASE_DRAINING
        assert not await is_serving(channel)
    process.send(signal.SIGTERM)
    assert await process.exit_code() == 0


async def test_it_is_alive_while_it_loads_serves_and_drains(start_stage: StartStage) -> None:
    process = start_stage(plan=singing(load_seconds=1.0))
    await process.said("listening")
    async with (
        grpc.aio.insecure_channel(process.address, options=CHANNEL_OPTIONS) as channel,
        grpc_link(process.address) as client,
    ):
        assert await is_serving(channel, LIVENESS)
        assert not await is_serving(channel)

        await client.phase(Phase.READY)
        running = await client.open(parameters=SHORT)
        await client.until(lambda: bool(client.text(running)))
        assert await is_serving(channel, LIVENESS)

        process.send(signal.SIGTERM)

        await client.phase(Phase.DRAINING)
        assert await is_serving(channel, LIVENESS)
        assert not await is_serving(channel)
        await client.ended(running)
    assert await process.exit_code() == 0


async def test_a_drained_process_does_not_become_ready_when_it_has_loaded(
    start_stage: StartStage,
) -> None:
    process = start_stage(plan=singing(load_seconds=1.0))
    await process.said("listening")
    async with grpc.aio.insecure_channel(process.address, options=CHANNEL_OPTIONS) as channel:
        stub = stage_pb2_grpc.StageServiceStub(channel)
        await stub.Drain(stage_pb2.DrainRequest(), wait_for_ready=True)

        await process.said("loaded too late")

        assert not await is_serving(channel)


async def test_a_port_that_is_taken_is_named(start_stage: StartStage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start_stage(plan=singing(), port=port)

        assert await process.exit_code() == 3

    said = await process.said("cannot start")
    assert f"cannot listen on 127.0.0.1:{port}: another process has the port" in said["error"]
    assert said["field"] == "--listen"


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (stage_plan({}, TEXT, engine="warp"), "no installed package registers an engine 'warp'"),
        (singing(sise=3), "engineArgs.sise: unknown key"),
        (singing(steps=-1), "engineArgs.steps: -1 does not fit"),
    ],
)
async def test_what_cannot_be_started_is_named(
    start_stage: StartStage, plan: PipelinePlan, words: str
) -> None:
    process = start_stage(plan=plan)

    assert await process.exit_code() == 3

    assert words in (await process.said("cannot start"))["error"]


async def test_an_engine_that_is_beyond_use_ends_its_process(
    start_stage: StartStage, tmp_path: Path
) -> None:
    environment = EngineEnvironment(tmp_path / "environment")
    environment.register(Path(fragile_engine.__file__), fragile="FragileEngine")
    process = start_stage(plan=stage_plan({}, TEXT, engine="fragile"), python=environment.python)
    await process.said("ready")
    async with grpc_link(process.address) as client:
        failed = await client.failed(await client.open())
        await client.phase(Phase.FAILED)

        assert await process.exit_code() == 1

    assert type(failed.error) is EngineFailed
    assert "the device fell off the bus" in failed.error.message
    assert "the device is gone" in (await process.said("engine failed"))["error"]
