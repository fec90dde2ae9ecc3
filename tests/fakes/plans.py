"""Plans made by hand, for what takes a plan and does not care how it was resolved."""

import sys
from collections.abc import Mapping
from pathlib import Path

from omnistage_cli.runtime import Launch
from omnistage_common.ids import (
    EngineName,
    ModelName,
    OutputName,
    PipelineName,
    Revision,
    StageName,
)
from omnistage_common.payloads import PayloadKind
from omnistage_common.pipeline.plan import (
    Execution,
    InputPlan,
    Limits,
    Modality,
    OutputPlan,
    PipelinePlan,
    ProducePlan,
    StagePlan,
    Timeouts,
)

__all__ = ["FAKE_LAUNCH", "one_stage_plan", "plan_of_stages"]

_HERE = Path(__file__).parent

FAKE_LAUNCH = Launch(
    stage=(sys.executable, str(_HERE / "fake_stage.py")),
    gateway=(sys.executable, str(_HERE / "fake_gateway.py")),
)
"""The fakes beside this file instead of the real services."""


def plan_of_stages(stages: Mapping[str, Mapping[str, str]], *, drain: float = 5.0) -> PipelinePlan:
    """A plan with one replica of each stage.

    Args:
        stages: Name -> environment.
        drain: Grace in seconds.
    """
    return PipelinePlan(
        name=PipelineName("fake"),
        namespace="default",
        served_names=(ModelName("fake"),),
        stages=tuple(_stage(name, dict(env)) for name, env in stages.items()),
        edges=(),
        outputs=(
            OutputPlan(
                stage=StageName(next(iter(stages))),
                output=OutputName("text"),
                kind=PayloadKind.TEXT,
                modality=Modality.TEXT,
            ),
        ),
        timeouts=Timeouts(request=30.0, drain=drain),
        revision=Revision("r"),
        origins={},
    )


def one_stage_plan(behaviour: str = "", *, drain: float = 5.0) -> PipelinePlan:
    """A plan of one stage whose fake behaves as named; see `fake_stage`."""
    return plan_of_stages({"thinker": {"FAKE_STAGE": behaviour}}, drain=drain)


def _stage(name: str, env: dict[str, str]) -> StagePlan:
    return StagePlan(
        name=StageName(name),
        execution=Execution.AUTOREGRESSIVE,
        engine=EngineName("simulated"),
        engine_args={},
        model="",
        consumes=(InputPlan(name=OutputName("conversation"), kind=PayloadKind.CONVERSATION),),
        produces=(ProducePlan(name=OutputName("text"), kind=PayloadKind.TEXT),),
        replicas=1,
        limits=Limits(max_running=4, max_queued=4, slab_bytes=65536),
        env=env,
        revision=Revision("r"),
    )
