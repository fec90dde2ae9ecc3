"""What `parse_chat_request` makes of bodies that it takes."""

import base64
from typing import Any

import msgspec
import pytest

from omnistage_common.errors import InvalidRequest
from omnistage_common.payloads import AudioPart, Message, Parameters, TextPart
from omnistage_common.pipeline.plan import Modality
from omnistage_gateway.media.formats import AudioFormat, AudioInputFormat, EncodedAudio
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
    assert request.modalities == {Modality.TEXT}
    assert (request.audio_inputs, request.audio_format) == ((), None)
    assert (request.stream, request.include_usage) == (False, False)


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
    assert request.modalities == {Modality.TEXT, Modality.AUDIO}
    assert request.audio_format is audio_format


def test_audio_settings_without_the_modality_leave_the_answer_a_text() -> None:
    request = parse(audio={"voice": "alloy", "format": "wav"})
    assert request.modalities == {Modality.TEXT}
    assert (request.audio_format, request.parameters.voice) == (None, None)


def test_a_voice_can_be_named_by_its_id() -> None:
    request = parse(modalities=["audio"], audio={"voice": {"id": "v1"}, "format": "wav"})
    assert request.parameters.voice == "v1"


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
        "n stop seed presence_penalty frequency_penalty metadata user tools logprobs logit_bias"
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
    def assistant(**fields: Any) -> tuple[TextPart | AudioPart, ...]:
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
