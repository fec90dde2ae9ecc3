"""Stage processes that are always ended, and what one asks them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.stage_process import StageProcess, stage_plan
from omnistage_common.payloads import PayloadKind
from omnistage_common.pipeline.plan import PipelinePlan
from omnistage_stage.engines.protocol import Gang

StartStage = Callable[..., StageProcess]
MIB = 1 << 20

SINGING = {
    "steps": 3,
    "step_seconds": 0.02,
    "outputs": {"text": {"when": "step", "text": "la "}, "audio": {"shape": [MIB]}},
}
"""Three pieces of text, 20 ms apart, and a megabyte of silence."""
SUNG = {"text": PayloadKind.TEXT, "audio": PayloadKind.WAVEFORM}


@pytest.fixture
def start_stage(tmp_path: Path) -> Iterator[StartStage]:
    """Starts stage processes that end with the test."""
    started: list[StageProcess] = []

    def start(
        *,
        plan: PipelinePlan | None = None,
        python: Path | None = None,
        port: int = 0,
        gang: Gang | None = None,
    ) -> StageProcess:
        started.append(
            StageProcess(
                plan or stage_plan(SINGING, SUNG), tmp_path, python=python, port=port, gang=gang
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.end()


@pytest.fixture(scope="module")
def singer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StageProcess]:
    """A process that several tests talk to, and none changes."""
    process = StageProcess(stage_plan(SINGING, SUNG), tmp_path_factory.mktemp("singer"))
    yield process
    process.end()
