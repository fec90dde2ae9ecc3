"""Weights of a plan are prepared, and folders looked at, before anything starts."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.plans import one_stage_plan
from omnistage_cli.runtime import check_folders, prepare_weights
from omnistage_common.errors import InvalidWeights
from omnistage_common.ids import EngineName, StageName
from omnistage_common.pipeline.plan import PipelinePlan


def plan_with(*models: tuple[str, str]) -> PipelinePlan:
    """A plan whose stages, called `a`, `b` and so on, have these engines and model sources."""
    plan = one_stage_plan()
    return replace(
        plan,
        stages=tuple(
            replace(plan.stages[0], name=StageName(name), engine=EngineName(engine), model=model)
            for name, (engine, model) in zip("abcdef", models, strict=False)
        ),
    )


def test_each_source_is_prepared_and_told_once(tmp_path: Path) -> None:
    source = f"file://{tmp_path}"
    told: list[str] = []

    prepare_weights(
        plan_with(("onnx", source), ("onnx", ""), ("onnx", source), ("mine", source)), told.append
    )

    assert told == [f"weights: {source}"]


def test_weights_that_are_not_to_be_had_are_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(InvalidWeights, match=r"stages\.a\.model: .* does not exist") as refused:
        prepare_weights(plan_with(("onnx", f"file://{tmp_path}/missing")), lambda _step: None)

    assert refused.value.field == "stages.a.model"


@pytest.mark.parametrize(
    ("engine", "wanted"),
    [
        ("vllm", "config.json"),
        ("torch", "config.json"),
        ("diffusers", "model_index.json"),
    ],
)
def test_a_folder_that_its_engine_cannot_read_is_refused_by_stage_and_file(
    tmp_path: Path, engine: str, wanted: str
) -> None:
    source = tmp_path.as_uri()

    with pytest.raises(InvalidWeights, match=rf"{tmp_path} has no {wanted}.* {engine} ") as refused:
        check_folders(plan_with(("onnx", source), (engine, source)))

    assert refused.value.field == "stages.b.model"
    assert refused.value.message.startswith("stages.b.model: ")


def test_only_folders_of_this_machine_are_looked_at() -> None:
    check_folders(plan_with(("vllm", "hf://no/such@thing"), ("vllm", "tiny://no-such"), ("x", "")))
