"""What `parse_chat_request` makes of bodies that it takes."""

import base64
from typing import Any

import msgspec
import pytest

from omnistage_common.errors import InvalidRequest
from omnistage_common.payloads import (
    AudioPart,
    DiffusionParameters,
    ImagePart,
    Message,
    Parameters,
    TextPart,
)
from omnistage_common.pipeline.plan import Modality
from omnistage_gateway.media.formats import (
    AudioFormat,
    AudioInputFormat,
    EncodedAudio,
    EncodedImage,
)
from omnistage_gateway.openai.chat_request import ChatRequest, parse_chat_request

QUESTION = {"role": "user", "content": "What is the capital of France?"}
RECORDING = {
    "type": "input_audio",
    "input_audio": {"data": base64.b64encode(b"sound").decode(), "format": "wav"},
}


def parse(**fields: Any) -> ChatRequest:
    return parse_chat_request(
        msgspec.json.encode({"model": "omni", "messages": [QUESTION], **fields})
    )


def test_the_smallest_request_asks_for_text_with_the_engines_defaults() -> None:
    request = parse()
    assert request.model == "omni"
    assert request.conversation.messages == (
        Message(role="user", parts=(TextPart(text="What is the capital of France?"),)),
    )
    assert request.parameters == Parameters()
    assert request.modalities is None
    assert (request.audio_inputs, request.image_inputs, request.audio_format) == ((), (), None)
    assert (request.stream, request.include_usage) == (False, False)
    assert (request.first_frames, request.denoising_field) == (None, "")


def test_every_parameter_reaches_the_engines() -> None:
    request = parse(
        max_tokens=16,
        temperature=1,
        top_p=0.5,
        seed=-(2**63),
        stop=["\n", "END"],
        presence_penalty=-2,
        frequency_penalty=2,
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "pcm16"},
        ignore_eos=True,
    )
    assert request.parameters == Parameters(
        max_tokens=16,
        temperature=1.0,
        top_p=0.5,
        seed=-(2**63),
        stop=("\n", "END"),
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        voice="alloy",
        ignore_eos=True,
    )


def test_recordings_keep_their_place_and_are_numbered_over_all_messages() -> None:
    request = parse(
        messages=[
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": [{"type": "text", "text": "Listen:"}, RECORDING]},
            {"role": "assistant", "content": "Yes?"},
            {"role": "user", "name": "Ann", "content": [RECORDING]},
        ]
    )
    assert [message.parts for message in request.conversation.messages] == [
        (TextPart(text="Be brief."),),
        (TextPart(text="Listen:"), AudioPart(index=0)),
        (TextPart(text="Yes?"),),
        (AudioPart(index=1),),
    ]
    assert request.audio_inputs == tuple(
        EncodedAudio(data=b"sound", format=AudioInputFormat.WAV, field=field)
        for field in ("messages[1].content[1].input_audio", "messages[3].content[0].input_audio")
    )


@pytest.mark.parametrize("audio_format", AudioFormat)
def test_every_audio_format_can_be_asked_for(audio_format: AudioFormat) -> None:
    request = parse(modalities=["audio"], audio={"voice": "alloy", "format": audio_format.value})
    assert request.modalities == frozenset({Modality.AUDIO})
    assert request.audio_format is audio_format


def test_audio_settings_without_the_modality_ask_for_no_audio() -> None:
    request = parse(audio={"voice": "alloy", "format": "wav"})
    assert request.modalities is None
    assert request.audio_format is AudioFormat.WAV


def test_a_voice_can_be_named_by_its_id_or_left_to_the_model() -> None:
    request = parse(modalities=["audio"], audio={"voice": {"id": "v1"}, "format": "wav"})
    assert request.parameters.voice == "v1"
    request = parse(modalities=["audio"], audio={"format": "wav"})
    assert request.parameters.voice is None


def test_every_modality_can_be_asked_for() -> None:
    audio = {"format": "wav"}
    every = parse(modalities=["text", "image", "video", "audio"], audio=audio)
    assert every.modalities == frozenset(Modality)
    assert parse(modalities=["image"]).modalities == frozenset({Modality.IMAGE})


def image(data: str = "AAAA", kind: str = "png", **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{data}", **fields}}


def test_images_keep_their_place_among_recordings_and_words() -> None:
    request = parse(
        messages=[
            {"role": "user", "content": [image("AAAA"), RECORDING, image("BBBB", "jpeg")]},
            {"role": "assistant", "content": "Nice."},
            {"role": "user", "content": [{"type": "text", "text": "And?"}, image("CCCC", "webp")]},
        ]
    )
    assert [message.parts for message in request.conversation.messages] == [
        (ImagePart(index=0), AudioPart(index=0), ImagePart(index=1)),
        (TextPart(text="Nice."),),
        (TextPart(text="And?"), ImagePart(index=2)),
    ]
    assert request.conversation.image_count == 3
    assert request.image_inputs == (
        EncodedImage(base64="AAAA", field="messages[0].content[0].image_url.url"),
        EncodedImage(base64="BBBB", field="messages[0].content[2].image_url.url"),
        EncodedImage(base64="CCCC", field="messages[2].content[1].image_url.url"),
    )


@pytest.mark.parametrize("detail", ["auto", "low", "high", None])
def test_the_detail_of_an_image_changes_nothing(detail: str | None) -> None:
    messages = [{"role": "user", "content": [image(detail=detail)]}]
    assert parse(messages=messages) == parse(messages=[{"role": "user", "content": [image()]}])


def test_the_head_of_a_data_uri_may_be_written_in_capitals() -> None:
    part = {"type": "image_url", "image_url": {"url": "DATA:Image/PNG;Base64,AAAA"}}
    (encoded,) = parse(messages=[{"role": "user", "content": [part]}]).image_inputs
    assert encoded.base64 == "AAAA"


def test_what_is_about_denoising_reaches_the_engines_and_is_named() -> None:
    request = parse(
        size="512x256",
        negative_prompt="blurry",
        num_inference_steps=20,
        guidance_scale=7.5,
        true_cfg_scale=4,
        num_frames=33,
        seconds=2.5,
        seed=7,
    )
    assert request.parameters.seed == 7
    assert request.parameters.diffusion == DiffusionParameters(
        width=512,
        height=256,
        steps=20,
        guidance_scale=7.5,
        true_cfg_scale=4.0,
        negative_prompt="blurry",
        frames=33,
        seconds=2.5,
    )
    assert request.denoising_field == "size"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"width": 64}, DiffusionParameters(width=64)),
        ({"width": 64, "height": 32}, DiffusionParameters(width=64, height=32)),
        ({"size": "auto"}, DiffusionParameters()),
        ({"seconds": 10}, DiffusionParameters(seconds=10.0)),
    ],
)
def test_a_part_of_it_leaves_the_rest_to_the_pipeline(
    fields: dict[str, Any], expected: DiffusionParameters
) -> None:
    request = parse(**fields)
    assert request.parameters.diffusion == expected
    assert request.denoising_field == next(iter(fields))


def test_a_wish_for_the_first_piece_of_sound_is_kept() -> None:
    assert parse(initial_codec_chunk_frames=4).first_frames == 4


def test_a_stream_ends_with_usage_when_that_is_asked_for() -> None:
    assert parse(stream=True, stream_options={"include_usage": True}).include_usage
    assert not parse(stream=True, stream_options={"include_usage": None}).include_usage
    assert not parse(stream=True).include_usage


def test_the_newer_name_of_the_token_limit_is_taken_and_may_be_repeated() -> None:
    assert parse(max_completion_tokens=7).parameters.max_tokens == 7
    assert parse(max_completion_tokens=7, max_tokens=7).parameters.max_tokens == 7


def test_one_stop_string_is_one_stop_string() -> None:
    assert parse(stop="END").parameters.stop == ("END",)


def test_null_means_left_out() -> None:
    optional = (
        "stream stream_options modalities audio max_completion_tokens max_tokens temperature top_p "
        "n stop seed presence_penalty frequency_penalty metadata user tools logprobs logit_bias "
        "size width height num_frames seconds negative_prompt num_inference_steps guidance_scale "
        "true_cfg_scale initial_codec_chunk_frames"
    )
    assert parse(**dict.fromkeys(optional.split())) == parse()


@pytest.mark.parametrize(
    "field",
    [
        {"user": "u"},
        {"metadata": {"k": "v"}},
        {"store": True},
        {"service_tier": "auto"},
        {"parallel_tool_calls": True},
        {"safety_identifier": "s"},
        {"prompt_cache_key": "k"},
        {"prompt_cache_retention": "24h"},
        {"prompt_cache_options": {"mode": "implicit"}},
        {"n": 1},
    ],
    ids=lambda field: next(iter(field)),
)
def test_fields_that_change_no_answer_are_taken(field: dict[str, Any]) -> None:
    assert parse(**field) == parse()


@pytest.mark.parametrize(
    "field",
    [
        {"tools": []},
        {"tool_choice": "auto"},
        {"function_call": "none"},
        {"response_format": {"type": "text"}},
        {"logprobs": False},
        {"top_logprobs": 0},
        {"logit_bias": {}},
        {"reasoning_effort": "none"},
        {"top_k": -1},
        {"repetition_penalty": 1.0},
        {"skip_special_tokens": True},
    ],
    ids=lambda field: next(iter(field)),
)
def test_an_unsupported_field_that_is_off_is_taken(field: dict[str, Any]) -> None:
    assert parse(**field) == parse()


def test_an_answer_that_a_client_sends_back_is_read_as_its_text() -> None:
    def assistant(**fields: Any) -> tuple[TextPart | AudioPart | ImagePart, ...]:
        sent = [QUESTION, {"role": "assistant", **fields}, QUESTION]
        return parse(messages=sent).conversation.messages[1].parts

    audio = {"id": "audio-1", "data": "AAAA", "expires_at": 1, "transcript": "Paris."}
    nothing: dict[str, Any] = {"refusal": None, "tool_calls": None, "annotations": []}
    assert assistant(content="Paris!", audio=audio, **nothing) == (TextPart(text="Paris!"),)
    assert assistant(content=None, audio=audio) == (TextPart(text="Paris."),)
    assert assistant(content=None, refusal="I will not.") == (TextPart(text="I will not."),)


def test_empty_pieces_of_text_beside_others_are_dropped() -> None:
    empty = {"type": "text", "text": ""}
    request = parse(messages=[{"role": "user", "content": [empty, RECORDING]}])
    assert request.conversation.messages[0].parts == (AudioPart(index=0),)


def test_a_refused_request_leaves_no_other_request_changed() -> None:
    before = parse()
    with pytest.raises(InvalidRequest):
        parse(temperature=3)
    assert parse() == before
