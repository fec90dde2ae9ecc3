"""Every body that is refused, with the field that the refusal names."""

import base64
import random
from typing import Any

import msgspec
import pytest

from omnistage_common.errors import InvalidRequest, UnsupportedModality
from omnistage_gateway.openai.chat_request import parse_chat_request
from omnistage_gateway.openai.unsupported import UNSUPPORTED

VALID: dict[str, Any] = {
    "model": "omni",
    "messages": [{"role": "user", "content": "hello"}],
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "wav"},
}
SOUND = base64.b64encode(b"sound").decode()


def refusal(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat_request(body)
    return caught.value


def changed(**fields: Any) -> InvalidRequest:
    return refusal(msgspec.json.encode({**VALID, **fields}))


def user(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def recording(**fields: Any) -> dict[str, Any]:
    return {
        "type": "input_audio",
        "input_audio": {"data": SOUND, "format": "wav", **fields},
    }


def picture(url: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def after_the_question(**message: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hello"}, message]}


PART = "messages[0].content[0]"
URL = f"{PART}.image_url.url"
PNG = "data:image/png;base64,AAAA"

WRONG: list[tuple[dict[str, Any], str, str]] = [
    # What the field is set to; the field that is named; words of the message.
    ({"model": 5}, "model", "expected the name of a model, got 5"),
    ({"model": ""}, "model", 'got ""'),
    ({"model": None}, "model", "got null"),
    ({"messages": []}, "messages", "at least one message, got a list of 0"),
    ({"messages": "hello"}, "messages", 'got "hello"'),
    ({"messages": {}}, "messages", "got an object"),
    ({"messages": ["hello"]}, "messages[0]", "an object with `role` and `content`"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "missing: give one of system"),
    ({"messages": [{"role": "bot", "content": "x"}]}, "messages[0].role", 'got "bot"'),
    ({"messages": [{"role": "system", "content": "x"}]}, "messages", "no message of role user"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "empty"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content", "empty"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "empty"),
    (user(), "messages[0].content", "empty"),
    (user({"type": "text", "text": ""}), "messages[0].content", "empty"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "got 5"),
    (user("hello"), PART, 'an object with `type`, got "hello"'),
    (user({"text": "hello"}), f"{PART}.type", "missing"),
    (user({"type": "poem"}), f"{PART}.type", 'got "poem"'),
    (user({"type": 5}), f"{PART}.type", "got 5"),
    (user({"type": "text"}), f"{PART}.text", "missing"),
    (user({"type": "text", "text": 5}), f"{PART}.text", "expected a string, got 5"),
    (user({"type": "text", "text": "x", "txt": ""}), f"{PART}.txt", "did you mean `text`?"),
    (user({"type": "input_audio"}), f"{PART}.input_audio", "missing"),
    (user({"type": "input_audio", "input_audio": SOUND}), f"{PART}.input_audio", "`data` and"),
    (user(recording(data="@@@@")), f"{PART}.input_audio.data", "base64"),
    (user(recording(data=SOUND[:-1])), f"{PART}.input_audio.data", "padded"),
    (user(recording(data=f"data:audio/wav;base64,{SOUND}")), f"{PART}.input_audio.data", "prefix"),
    (user(recording(data="")), f"{PART}.input_audio.data", "empty"),
    (user(recording(data=5)), f"{PART}.input_audio.data", "got 5"),
    (user(recording(format="aac")), f"{PART}.input_audio.format", "wav, mp3, flac, ogg, opus"),
    (user(recording(rate=8000)), f"{PART}.input_audio.rate", "unknown field"),
    (
        after_the_question(role="assistant", content=[recording()]),
        "messages[1].content[0].input_audio",
        "only user messages",
    ),
    (user({"type": "image_url"}), f"{PART}.image_url", "missing: give an object with `url`"),
    (user({"type": "image_url", "image_url": PNG}), f"{PART}.image_url", "object with `url`"),
    (user(picture(5)), URL, "a `data:` URI with an image in base64, got 5"),
    (user(picture("https://example.org/cat.png")), URL, "not fetched from URLs; send the image"),
    (user(picture("HTTP://example.org/cat.png")), URL, "not fetched from URLs"),
    (user(picture("file:///etc/passwd")), URL, "not fetched from URLs"),
    (user(picture("cat.png")), URL, "expected a `data:` URI"),
    (user(picture("")), URL, "expected a `data:` URI"),
    (user(picture("data:image/png,AAAA")), URL, "`data:image/png;base64,`"),
    (user(picture("data:text/html;base64,AAAA")), URL, "`data:image/png;base64,`"),
    (user(picture("data:;base64,AAAA")), URL, "`data:image/png;base64,`"),
    (user(picture("data:image/" + "x" * 200 + ";base64,AAAA")), URL, "`data:image/png"),
    (user(picture(PNG, detail="most")), f"{PART}.image_url.detail", '"low" or "high"'),
    (user(picture(PNG, details="low")), f"{PART}.image_url.details", "did you mean `detail`?"),
    (user(*[picture(PNG)] * 65), "messages[0].content[64].image_url", "can have 64"),
    (user({"type": "image", "image": PNG}), f"{PART}.type", "sent as `image_url`"),
    (user({"type": "input_image", "image_url": PNG}), f"{PART}.type", "not as `input_image`"),
    (
        after_the_question(role="assistant", content=[picture(PNG)]),
        "messages[1].content[0].image_url",
        "only user messages can hold images, this one is of role assistant",
    ),
    (after_the_question(role="tool", content="42"), "messages[1].role", "call no tools"),
    (after_the_question(role="function", content="42"), "messages[1].role", "user message"),
    (
        after_the_question(role="assistant", content="x", tool_calls=[{"id": "1"}]),
        "messages[1].tool_calls",
        "not supported",
    ),
    (
        after_the_question(role="assistant", content="x", function_call={"name": "f"}),
        "messages[1].function_call",
        "not supported",
    ),
    (
        after_the_question(role="assistant", audio={"id": "audio-1"}),
        "messages[1].content",
        "empty",
    ),
    (after_the_question(role="user", contents="x"), "messages[1].contents", "`content`?"),
    ({"stream": "yes"}, "stream", 'expected true or false or null, got "yes"'),
    ({"stream_options": {"include_usage": True}}, "stream_options", "needs `stream: true`"),
    (
        {"stream": True, "stream_options": {"include_usage": 1}},
        "stream_options.include_usage",
        "got 1",
    ),
    (
        {"stream": True, "stream_options": {"include_usages": True}},
        "stream_options.include_usages",
        "did you mean `include_usage`?",
    ),
    ({"modalities": []}, "modalities", 'a list of "text", "audio", "image" and "video"'),
    ({"modalities": "audio"}, "modalities", 'got "audio"'),
    ({"modalities": ["text", "smell"]}, "modalities[1]", 'got "smell"'),
    ({"audio": None}, "audio", "missing although `modalities` asks for audio"),
    ({"audio": "alloy"}, "audio", "`format` and, where"),
    ({"audio": {"voice": "", "format": "wav"}}, "audio.voice", "name of a voice"),
    ({"audio": {"voice": {}, "format": "wav"}}, "audio.voice.id", "missing"),
    ({"audio": {"voice": "alloy"}}, "audio.format", "missing: give one of wav, pcm16"),
    ({"audio": {"voice": "alloy", "format": "aac"}}, "audio.format", "wav, pcm16, flac, mp3, opus"),
    ({"max_tokens": 0}, "max_tokens", "at least 1, got 0"),
    ({"max_tokens": True}, "max_tokens", "got true"),
    ({"max_tokens": 1.5}, "max_tokens", "got 1.5"),
    ({"max_tokens": 2**31}, "max_tokens", "got 2147483648"),
    ({"max_completion_tokens": "16"}, "max_completion_tokens", 'got "16"'),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "two names of one thing"),
    ({"temperature": "hot"}, "temperature", 'a number from 0 to 2, got "hot"'),
    ({"temperature": 2.1}, "temperature", "got 2.1"),
    ({"temperature": -0.1}, "temperature", "got -0.1"),
    ({"top_p": 0}, "top_p", "above 0, up to 1, got 0"),
    ({"top_p": 1.01}, "top_p", "got 1.01"),
    ({"n": 2}, "n", "send several requests"),
    ({"n": "1"}, "n", 'got "1"'),
    ({"stop": ""}, "stop", "non-empty"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "at most 4 of them, got a list of 5"),
    ({"stop": ["a", ""]}, "stop[1]", "non-empty"),
    ({"stop": ["a", 5]}, "stop[1]", "got 5"),
    ({"seed": 1.5}, "seed", "got 1.5"),
    ({"seed": 2**63}, "seed", "at most 64 bits"),
    ({"presence_penalty": 2.5}, "presence_penalty", "from -2 to 2"),
    ({"frequency_penalty": -2.5}, "frequency_penalty", "from -2 to 2"),
    ({"size": "big"}, "size", 'expected "auto", or width and height such as "1024x768"'),
    ({"size": "1024"}, "size", "width and height"),
    ({"size": "64x64x3"}, "size", "width and height"),
    ({"size": "064x64"}, "size", "width and height"),
    ({"size": "4x64"}, "size", "from 8 to 8192"),
    ({"size": "64x9999"}, "size", "from 8 to 8192"),
    ({"size": "8192x8192"}, "size", "67108864 pixels; at most 16777216"),
    ({"width": 8192, "height": 8192}, "width", "67108864 pixels"),
    ({"size": "64x64", "height": 64}, "height", "`size` are two names of one thing"),
    ({"size": 64}, "size", "got 64"),
    ({"width": 7}, "width", "from 8 to 8192, got 7"),
    ({"height": 8193}, "height", "got 8193"),
    ({"num_inference_steps": 0}, "num_inference_steps", "from 1 to 200, got 0"),
    ({"num_inference_steps": 201}, "num_inference_steps", "got 201"),
    ({"guidance_scale": -1}, "guidance_scale", "from 0 to 20, got -1"),
    ({"true_cfg_scale": 20.5}, "true_cfg_scale", "from 0 to 20, got 20.5"),
    ({"num_frames": 0}, "num_frames", "from 1 to 1024"),
    ({"seconds": 0}, "seconds", "above 0, up to 600, got 0"),
    ({"negative_prompt": 5}, "negative_prompt", "expected a string or null, got 5"),
    ({"initial_codec_chunk_frames": 0}, "initial_codec_chunk_frames", "from 1 to 1000, got 0"),
    ({"num_inference_step": 3}, "num_inference_step", "did you mean `num_inference_steps`?"),
    ({"ignore_eos": 1}, "ignore_eos", "got 1"),
    ({"user": 5}, "user", "expected a string or null, got 5"),
    ({"metadata": {"k": 5}}, "metadata", "strings as values, got an object"),
    ({"max_token": 1}, "max_token", "did you mean `max_tokens`?"),
    ({"zzz": 1}, "zzz", "unknown field `zzz`; leave it out"),
]


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    WRONG,
    ids=[f"{field}-{words}".replace(" ", "_") for _, field, words in WRONG],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(
    fields: dict[str, Any], field: str, words: str
) -> None:
    error = changed(**fields)
    assert error.field == field
    assert words in error.message
    assert not isinstance(error, UnsupportedModality)


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        (user({"type": "video_url", "video_url": {"url": "x"}}), f"{PART}.type", "videos"),
        (user({"type": "file", "file": {}}), f"{PART}.type", "files"),
        (user({"type": "audio_url", "audio_url": {}}), f"{PART}.type", "`input_audio`"),
    ],
)
def test_other_modalities_are_refused_as_such(
    fields: dict[str, Any], field: str, words: str
) -> None:
    error = changed(**fields)
    assert isinstance(error, UnsupportedModality)
    assert error.field == field
    assert words in error.message


@pytest.mark.parametrize("field", ["model", "messages"])
def test_a_missing_field_is_named(field: str) -> None:
    body = {name: value for name, value in VALID.items() if name != field}
    error = refusal(msgspec.json.encode(body))
    assert error.field == field
    assert "missing" in error.message


@pytest.mark.parametrize("field", sorted(UNSUPPORTED))
def test_an_unsupported_field_that_is_on_is_refused_with_a_remedy(field: str) -> None:
    error = changed(**{field: {"on": True}})
    assert error.field == field
    assert error.message == f"`{field}` is not supported: {UNSUPPORTED[field].remedy}"


@pytest.mark.parametrize(
    "fields",
    [{"logprobs": True}, {"logprobs": 0}, {"top_k": False}, {"response_format": {"type": "json"}}],
    ids=str,
)
def test_off_is_compared_by_type_too(fields: dict[str, Any]) -> None:
    assert changed(**fields).field == next(iter(fields))


def test_an_unsupported_field_does_not_hide_what_else_is_wrong() -> None:
    assert changed(tools=[], temperature="hot").field == "temperature"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b'{"model": "omni"',
        b'{"model": "omni"}}',
        b'{"model": "\xff\xfe", "messages": []}',
        b"\xff\xfe{\x00}\x00",
        b'{"model": "\\ud800", "messages": []}',
        b'{"temperature": NaN}',
        b'{"tools": ' + b"[" * 100_000,
        b'{"tools": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_what_is_not_json_is_refused_as_the_body(body: bytes) -> None:
    error = refusal(body)
    assert error.field == "body"
    assert "not valid JSON" in error.message


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"5", b"null"])
def test_json_that_is_no_object_is_refused_as_the_body(body: bytes) -> None:
    error = refusal(body)
    assert error.field == "body"
    assert "an object with `model` and `messages`" in error.message


def test_a_number_that_no_float_holds_is_refused_by_its_field() -> None:
    body = msgspec.json.encode(VALID)[:-1] + b',"temperature":1e999}'
    assert refusal(body).field == "temperature"


def test_a_message_repeats_only_the_beginning_of_what_the_client_sent() -> None:
    for fields in ({"temperature": "x" * 10_000}, {"x" * 10_000: 1}, {"seed": 10**4000}):
        assert len(changed(**fields).message) < 300


@pytest.mark.parametrize("name", ["`", "a` - at `$.model", "a.b[0]", "\n", "ü"])
def test_a_field_of_any_name_is_refused_and_nothing_else(name: str) -> None:
    assert "field" in changed(**{name: 1}).message


def test_bodies_with_random_damage_are_taken_or_refused_but_never_anything_else() -> None:
    dice = random.Random(7)  # noqa: S311 - damage that repeats
    valid = msgspec.json.encode({**VALID, **user(recording(), {"type": "text", "text": "hé"})})
    refused: list[InvalidRequest] = []
    for _ in range(2_000):
        body = bytearray(valid)
        for _ in range(dice.randint(1, 3)):
            body[dice.randrange(len(body))] = dice.randrange(256)
        try:
            parse_chat_request(bytes(body))
        except InvalidRequest as error:
            refused.append(error)
    assert len(refused) > 1_000
    assert all(error.field and error.message for error in refused)
