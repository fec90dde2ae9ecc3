"""What becomes of the bodies of speech requests: taken as they mean, or refused by the field."""

from typing import Any

import msgspec
import pytest

from omnistage_common.errors import InvalidRequest
from omnistage_common.payloads import Parameters
from omnistage_gateway.media.formats import AudioFormat
from omnistage_gateway.openai.speech_request import (
    SPEECH_UNSUPPORTED,
    Delivery,
    SpeechRequest,
    parse_speech_request,
)


def parse(**fields: Any) -> SpeechRequest:
    return parse_speech_request(
        msgspec.json.encode({"model": "speaker", "input": "Hello there.", **fields})
    )


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    return caught.value


def test_the_smallest_request_asks_for_an_mp3_of_the_models_own_voice() -> None:
    request = parse()
    assert (request.model, request.text) == ("speaker", "Hello there.")
    assert request.parameters == Parameters()
    assert (request.format, request.delivery) == (AudioFormat.MP3, Delivery.WHOLE)
    assert request.first_frames is None


def test_every_parameter_reaches_the_engines() -> None:
    request = parse(voice="alloy", speed=0.5, seed=3, initial_codec_chunk_frames=8)
    assert request.parameters == Parameters(voice="alloy", speed=0.5, seed=3)
    assert request.first_frames == 8


def test_a_voice_can_be_named_by_its_id() -> None:
    assert parse(voice={"id": "v1"}).parameters.voice == "v1"


@pytest.mark.parametrize(
    ("name", "audio_format"),
    [
        ("mp3", AudioFormat.MP3),
        ("opus", AudioFormat.OPUS),
        ("flac", AudioFormat.FLAC),
        ("wav", AudioFormat.WAV),
        ("pcm", AudioFormat.PCM16),
    ],
)
def test_every_format_can_be_asked_for(name: str, audio_format: AudioFormat) -> None:
    assert parse(response_format=name).format is audio_format


@pytest.mark.parametrize(
    ("stream_format", "delivery"),
    [(None, Delivery.WHOLE), ("audio", Delivery.AUDIO), ("sse", Delivery.SSE)],
)
def test_speech_comes_whole_unless_a_stream_is_asked_for(
    stream_format: str | None, delivery: Delivery
) -> None:
    assert parse(stream_format=stream_format).delivery is delivery


@pytest.mark.parametrize(
    "field",
    [{"instructions": ""}, {"instructions": None}, {"stream": False}, {"language": "Auto"}],
    ids=str,
)
def test_a_field_that_is_off_is_taken(field: dict[str, Any]) -> None:
    assert parse(**field) == parse()


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"input": ""}, "input", "the text to be spoken"),
        ({"input": " \t\n"}, "input", "blank"),
        ({"input": ["Hello"]}, "input", "got a list of 1"),
        ({"voice": ""}, "voice", "the name of a voice"),
        ({"voice": {}}, "voice.id", "missing"),
        ({"voice": {"id": "a", "idd": 1}}, "voice.idd", "did you mean `id`?"),
        ({"response_format": "aac"}, "response_format", "use one of mp3, opus, flac, wav, pcm"),
        ({"response_format": "ogg"}, "response_format", "one of mp3, opus, flac, wav, pcm"),
        ({"speed": 0.2}, "speed", "from 0.25 to 4, got 0.2"),
        ({"speed": 4.1}, "speed", "got 4.1"),
        ({"stream_format": "wav"}, "stream_format", '"audio" or "sse"'),
        ({"stream_format": ""}, "stream_format", 'got ""'),
        ({"stream": True}, "stream", "use `stream_format` instead"),
        ({"instructions": "Whisper."}, "instructions", "choose another `voice`"),
        ({"initial_codec_chunk_frames": 0}, "initial_codec_chunk_frames", "from 1 to 1000"),
        ({"inputs": "x"}, "inputs", "did you mean `input`?"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(
    fields: dict[str, Any], field: str, words: str
) -> None:
    error = refusal(**fields)
    assert error.field == field
    assert words in error.message


@pytest.mark.parametrize("field", ["model", "input"])
def test_a_missing_field_is_named(field: str) -> None:
    body = {name: "x" for name in ("model", "input") if name != field}
    with pytest.raises(InvalidRequest, match=f"`{field}` is missing") as caught:
        parse_speech_request(msgspec.json.encode(body))
    assert caught.value.field == field


@pytest.mark.parametrize("field", sorted(SPEECH_UNSUPPORTED))
def test_an_unsupported_field_that_is_on_is_refused_with_a_remedy(field: str) -> None:
    error = refusal(**{field: {"on": True}})
    assert error.field == field
    assert error.message == f"`{field}` is not supported: {SPEECH_UNSUPPORTED[field].remedy}"
