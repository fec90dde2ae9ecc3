"""Weights of a plan are prepared before anything starts."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.plans import one_stage_plan
from omnistage_cli.runtime import prepare_weights
from omnistage_common.errors import InvalidWeights
from omnistage_common.pipeline.plan import PipelinePlan


def plan_with(*models: str) -> PipelinePlan:
    """A plan whose stages have these model sources."""
    plan = one_stage_plan()
    return replace(plan, stages=tuple(replace(plan.stages[0], model=model) for model in models))


def test_each_source_is_prepared_once_and_told(tmp_path: Path) -> None:
    source = f"file://{tmp_path}"
    told: list[str] = []

    prepare_weights(plan_with(source, "", source), told.append)

    assert told == [f"weights: {source}"]


def test_weights_that_are_not_to_be_had_are_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(InvalidWeights, match="does not exist"):
        prepare_weights(plan_with(f"file://{tmp_path}/missing"), lambda _step: None)
