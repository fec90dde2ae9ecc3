"""Anybody adds an engine: a package of their own is installed, a plan names it, nothing of ours changes."""

from pathlib import Path

import pytest

from fakes.engine_packages import EngineEnvironment
from fakes.frames import text_output
from fakes.link_client import grpc_link
from fakes.stage_process import StageProcess, stage_plan
from omnistage_common.errors import InvalidRequest
from omnistage_common.links.frames import FinishReason
from omnistage_common.payloads import PayloadKind

PROJECT = Path(__file__).parents[1] / "fixtures" / "third_party_engine"
SHOUTING = stage_plan({"ending": "?!"}, {"text": PayloadKind.TEXT}, engine="shout")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> EngineEnvironment:
    """An environment in which the package is installed."""
    made = EngineEnvironment(tmp_path_factory.mktemp("environment"))
    made.install(PROJECT)
    return made


async def test_an_installed_engine_serves_a_stage(
    environment: EngineEnvironment, tmp_path: Path
) -> None:
    process = StageProcess(SHOUTING, tmp_path, python=environment.python)
    try:
        await process.said("ready")
        async with grpc_link(process.address) as client:
            number = await client.open(text_output("can you hear me"))
            end = await client.ended(number)
            assert client.text(number) == "CAN YOU HEAR ME?!"
            assert (end.finish_reason, end.usage.output_tokens) == (FinishReason.STOP, 4)

            refused = await client.failed(await client.open(text_output("")))
            assert type(refused.error) is InvalidRequest
            assert refused.error.field == "messages"
    finally:
        process.end()


async def test_its_arguments_are_checked_like_ours(
    environment: EngineEnvironment, tmp_path: Path
) -> None:
    plan = stage_plan({"volume": 11}, {"text": PayloadKind.TEXT}, engine="shout")
    process = StageProcess(plan, tmp_path, python=environment.python)
    try:
        assert await process.exit_code() == 3
        assert "engineArgs.volume: unknown key" in (await process.said("cannot start"))["error"]
    finally:
        process.end()


async def test_without_the_package_there_is_no_such_engine(tmp_path: Path) -> None:
    process = StageProcess(SHOUTING, tmp_path)
    try:
        assert await process.exit_code() == 3
        assert "an engine 'shout'" in (await process.said("cannot start"))["error"]
    finally:
        process.end()
