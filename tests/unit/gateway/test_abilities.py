"""What a pipeline can do, and what a request means that leaves it to the model."""

import pytest
from msgspec.structs import replace

from fakes.graphs import SPEAKING, graph_plan
from omnistage_common.errors import InvalidRequest, UnsupportedModality
from omnistage_common.pipeline.plan import Execution, Modality, PipelinePlan
from omnistage_gateway.pipelines.abilities import Abilities


def makes(**outputs: str) -> Abilities:
    """A stage that makes one thing of each modality."""
    names = {"text": "text", "audio": "speech", "image": "image", "video": "video"}
    finals = {f"omni.{names[modality]}": modality for modality in outputs}
    return Abilities.of(graph_plan({"omni": "conversation"}, outputs=finals))


def test_abilities_are_those_of_the_plan() -> None:
    abilities = Abilities.of(SPEAKING)

    assert abilities.takes == {"audio", "conversation"}
    assert abilities.makes == {Modality.TEXT, Modality.AUDIO}
    assert not abilities.denoises


def denoising(plan: PipelinePlan) -> PipelinePlan:
    """The same plan, its first stage a denoiser."""
    first, *rest = plan.stages
    return replace(plan, stages=(replace(first, execution=Execution.DIFFUSION), *rest))


@pytest.mark.parametrize(
    ("made", "meant"),
    [
        ("text", {Modality.TEXT}),
        ("text audio", {Modality.TEXT}),
        ("text audio image video", {Modality.TEXT}),
        ("audio", {Modality.AUDIO}),
        ("image", {Modality.IMAGE}),
        ("video", {Modality.VIDEO}),
    ],
)
def test_who_names_nothing_means_text_or_the_only_thing_there_is(
    made: str, meant: set[Modality]
) -> None:
    assert makes(**dict.fromkeys(made.split(), "")).wants(None) == meant


def test_who_names_nothing_of_several_things_without_text_is_asked() -> None:
    with pytest.raises(UnsupportedModality, match="audio, image") as refused:
        makes(image="", audio="").wants(None)

    assert refused.value.field == "modalities"


@pytest.mark.parametrize(
    ("made", "named", "wanted"),
    [
        ("text audio", "audio", "text audio"),
        ("text audio", "text", "text"),
        ("audio", "audio", "audio"),
        ("audio image", "image", "image"),
        ("text image", "image", "image"),
        ("text", "video", "video"),
    ],
)
def test_audio_comes_with_its_text_where_there_is_any(made: str, named: str, wanted: str) -> None:
    abilities = makes(**dict.fromkeys(made.split(), ""))

    assert abilities.wants(frozenset(map(Modality, named.split()))) == set(
        map(Modality, wanted.split())
    )


def test_a_field_about_denoising_is_for_those_who_denoise() -> None:
    plan = graph_plan({"dit": "conversation"}, outputs={"dit.image": "image"})

    Abilities.of(denoising(plan)).check_denoises("num_inference_steps")
    Abilities.of(plan).check_denoises("")
    with pytest.raises(InvalidRequest, match="does not denoise; leave it out") as refused:
        Abilities.of(plan).check_denoises("num_inference_steps")
    assert refused.value.field == "num_inference_steps"
