"""What a stage process says as it ends, read as the operator reads it from the kubelet."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fakes import fragile_engine
from fakes.engine_packages import EngineEnvironment
from fakes.link_client import grpc_link
from fakes.stage_process import StageProcess, stage_plan
from omnistage_common.payloads import PayloadKind
from omnistage_common.pipeline.resources.status import StageReason
from omnistage_operator.planning.endings import Ending, ending

StartStage = Callable[..., StageProcess]
TEXT = {"text": PayloadKind.TEXT}
KEPT = 2048
"""Characters of a log's end that a kubelet keeps."""


async def ended(process: StageProcess) -> Ending:
    """The end of a process, as the kubelet hands it on."""
    status = await process.exit_code()
    message = "\n".join(process.log)[-KEPT:]
    return ending({"exitCode": status, "reason": "Error", "message": message})


@pytest.mark.parametrize(
    ("engine", "arguments", "words"),
    [
        ("simulated", {"sise": 3}, "engineArgs.sise: unknown key"),
        ("simulated", {"steps": -1}, "engineArgs.steps: -1 does not fit"),
        ("warp", {}, "no installed package registers an engine 'warp'"),
    ],
)
async def test_what_cannot_be_started_names_its_field(
    start_stage: StartStage, engine: str, arguments: dict[str, int], words: str
) -> None:
    found = await ended(start_stage(plan=stage_plan(arguments, TEXT, engine=engine)))

    assert found.reason is StageReason.ENGINE_ARGS_REJECTED
    assert words in found.message


async def test_an_engine_that_is_beyond_use_says_why(
    start_stage: StartStage, tmp_path: Path
) -> None:
    environment = EngineEnvironment(tmp_path / "environment")
    environment.register(Path(fragile_engine.__file__), fragile="FragileEngine")
    process = start_stage(plan=stage_plan({}, TEXT, engine="fragile"), python=environment.python)
    await process.said("ready")
    async with grpc_link(process.address) as client:
        await client.failed(await client.open())

        found = await ended(process)

    assert found.reason is StageReason.CRASH_LOOP
    assert found.message.startswith("ended with exit status 1: ")
    assert "the device is gone" in found.message
