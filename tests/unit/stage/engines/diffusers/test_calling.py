"""What a request says becomes a pipeline's arguments, or is refused by the field that says it."""

from typing import Any

import pytest

from fakes.engine_io import conversation, text, user_message
from omnistage_common.errors import InvalidRequest, SetupError, UnsupportedModality
from omnistage_common.ids import OutputName
from omnistage_common.payloads import DiffusionParameters as Asked
from omnistage_common.payloads import ImagePart, Message, Payload, TextPart
from omnistage_stage.engines.diffusers.arguments import DiffusionDefaults, DiffusionLimits
from omnistage_stage.engines.diffusers.calling import Grid, PipelineCall, prompt_of


def video_pipeline(  # noqa: PLR0913, PLR0917
    prompt: str | None = None,
    negative_prompt: str | None = None,
    height: int = 480,
    width: int = 832,
    num_frames: int = 81,
    num_inference_steps: int = 50,
    guidance_scale: float = 5.0,
    generator: object = None,
    output_type: str = "np",
    prompt_embeds: object = None,
    num_videos_per_prompt: int = 1,
    attention_kwargs: dict[str, Any] | None = None,
    callback_on_step_end: object = None,
    max_sequence_length: int = 512,
    **_kwargs: Any,
) -> None:
    """Has the signature of a video pipeline."""


def sound_pipeline(
    prompt: str | None = None,
    audio_length_in_s: float | None = None,
    num_inference_steps: int = 100,
) -> None:
    """Has the signature of a pipeline that makes sound."""


def call(
    function: Any = video_pipeline,
    extra: dict[str, Any] | None = None,
    **defaults: Any,
) -> PipelineCall:
    """A pipeline's call with these defaults."""
    return PipelineCall(function, DiffusionDefaults(**defaults), extra or {})


def check(asked: Asked, grid: Grid | None = None, **defaults: Any) -> None:
    """Checks a request for a video."""
    call(**defaults).check(asked, DiffusionLimits(max_pixels=1000 * 1000), grid or Grid())


def test_only_what_is_said_is_passed_on_under_the_pipelines_names() -> None:
    assert call().arguments(Asked()) == {}
    assert call().arguments(Asked(width=64, height=32, steps=4, frames=9)) == {
        "width": 64,
        "height": 32,
        "num_inference_steps": 4,
        "num_frames": 9,
    }
    assert call(sound_pipeline).arguments(Asked(seconds=2.5)) == {"audio_length_in_s": 2.5}


def test_a_request_goes_before_engine_args_and_those_before_the_pipelines_defaults() -> None:
    told = call(steps=8, guidance_scale=2.0, max_sequence_length=77, extra={"attention_kwargs": {}})

    arguments = told.arguments(Asked(steps=4))
    assert arguments == {
        "num_inference_steps": 4,
        "guidance_scale": 2.0,
        "max_sequence_length": 77,
        "attention_kwargs": {},
    }
    effective = told.effective(arguments)
    assert (effective["num_inference_steps"], effective["height"]) == (4, 480)


def test_the_negative_prompt_is_the_requests_or_that_of_engine_args() -> None:
    told = call(negative_prompt="blurred")

    assert told.negative_prompt(Asked()) == "blurred"
    assert told.negative_prompt(Asked(negative_prompt="")) == ""
    assert call().negative_prompt(Asked()) is None
    assert "negative_prompt" not in told.arguments(Asked(negative_prompt="dark"))


def test_a_frame_rate_is_told_to_a_pipeline_that_takes_one_and_kept_for_any_other() -> None:
    def with_rate(frame_rate: int = 25) -> None:
        """Takes a rate."""

    assert call(with_rate, frame_rate=30).arguments(Asked()) == {"frame_rate": 30}
    assert call(with_rate).frame_rate(16) == 25
    assert call(with_rate, frame_rate=30).frame_rate(16) == 30
    assert call(frame_rate=30).arguments(Asked()) == {}
    assert call(frame_rate=30).frame_rate(16) == 30
    assert call().frame_rate(16) == 16


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (Asked(seconds=1.0), "seconds"),
        (Asked(true_cfg_scale=2.0), "true_cfg_scale"),
    ],
)
def test_what_a_pipeline_cannot_be_told_is_refused(asked: Asked, field: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be told") as refused:
        call().arguments(asked)
    assert refused.value.field == field


def test_a_size_or_a_negative_prompt_for_a_sound_is_refused() -> None:
    for asked, field in (
        (Asked(width=64), "size"),
        (Asked(negative_prompt="loud"), "negative_prompt"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            call(sound_pipeline).arguments(asked)
        assert refused.value.field == field


@pytest.mark.parametrize(
    ("asked", "field", "words"),
    [
        (Asked(width=840), "size", "840x480: width and height must be multiples of 16"),
        (Asked(width=0, height=16), "size", "multiples of 16"),
        (Asked(width=1600, height=1600), "size", "2560000 pixels; must be from 1 to 1000000"),
        (Asked(steps=0), "steps", "from 1 to 200"),
        (Asked(steps=201), "steps", "from 1 to 200"),
        (Asked(frames=82), "frames", "one more than a multiple of 4, for example 81 or 85"),
        (Asked(frames=1001), "frames", "from 1 to 257"),
        (Asked(count=0), "n", "from 1 to 10"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_the_bounds(
    asked: Asked, field: str, words: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check(asked, Grid(pixels=16, frames=4))

    assert words in refused.value.message
    assert refused.value.field == field


def test_what_is_within_bounds_passes() -> None:
    check(Asked(), Grid(pixels=16, frames=4))
    check(Asked(width=64, height=1024, frames=1, steps=200, count=10), Grid(pixels=16, frames=4))


@pytest.mark.parametrize("seconds", [0.0, -1.0, 48.0])
def test_a_sound_that_is_too_long_or_no_sound_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidRequest, match=r"at most 47\.5") as refused:
        call(sound_pipeline).check(
            Asked(seconds=seconds), DiffusionLimits(), Grid(max_seconds=47.5)
        )
    assert refused.value.field == "seconds"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("clip_skip", "it takes attention_kwargs"),
        ("_kwargs", "no such argument"),
        ("num_frames", r"say engineArgs.defaults.frames"),
        ("prompt", "the engine gives"),
        ("generator", "the engine gives"),
        ("prompt_embeds", "the engine gives"),
        ("num_videos_per_prompt", "the engine gives"),
        ("callback_on_step_end", "the engine gives"),
    ],
)
def test_extra_arguments_that_are_not_theirs_to_give_are_refused(name: str, words: str) -> None:
    with pytest.raises(SetupError, match=words) as refused:
        call(extra={name: 1})
    assert refused.value.field == f"engineArgs.call.{name}"


def test_defaults_that_a_pipeline_does_not_take_are_refused() -> None:
    given: dict[str, Any] = {"width": 64, "negative_prompt": "loud", "frames": 9}
    for name, value in given.items():
        with pytest.raises(SetupError, match="takes no") as refused:
            PipelineCall(sound_pipeline, DiffusionDefaults(**{name: value}), {})
        assert refused.value.field == f"engineArgs.defaults.{name}"


def test_a_trial_is_told_what_the_pipeline_takes_of_it() -> None:
    wishes = {"width": 64, "height": 64, "steps": 2, "frames": 9}

    assert call(sound_pipeline).trial(wishes) == {"num_inference_steps": 2}
    assert call(max_sequence_length=32).trial({}) == {"max_sequence_length": 32}


def inputs(*payloads: Payload) -> dict[OutputName, tuple[Payload, ...]]:
    """What arrived at one port."""
    return {OutputName("prompt"): payloads}


def test_text_is_the_prompt_whatever_was_said_before() -> None:
    said = conversation(user_message("a dog"))

    assert prompt_of(inputs(text("a "), text("cat"))) == "a cat"
    assert prompt_of({**inputs(text("a cat")), OutputName("conversation"): (said,)}) == "a cat"


def test_of_a_conversation_the_users_last_message_counts() -> None:
    system = Message(role="system", parts=(TextPart(text="be brief"),))
    answer = Message(role="assistant", parts=(TextPart(text="here it is"),))
    said = conversation(system, user_message("a dog"), answer, user_message("a cat"), answer)

    assert prompt_of(inputs(said)) == "a cat"


def test_no_words_are_no_prompt() -> None:
    system = Message(role="system", parts=(TextPart(text="be brief"),))
    for said in (inputs(), inputs(conversation(system)), inputs(text(" \n"))):
        with pytest.raises(InvalidRequest) as refused:
            prompt_of(said)
        assert refused.value.field == "prompt"


def test_a_picture_in_the_last_message_is_refused_and_not_overlooked() -> None:
    seen = Message(role="user", parts=(TextPart(text="like this"), ImagePart(index=0)))

    with pytest.raises(UnsupportedModality) as refused:
        prompt_of(inputs(conversation(seen)))
    assert refused.value.field == "messages"
    assert prompt_of(inputs(conversation(seen, user_message("a cat")))) == "a cat"
