"""Why a body was not taken: every refusal names the field, what was expected and what stood there.

This is the slow path of parsing. It runs only after strict decoding has failed, decodes the body a
second time without types, and either finds that nothing is wrong (a field that is not supported
holds the value that means "off"), or raises the one error that says what to change. A field that
would change the answer is never ignored.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

import msgspec
from msgspec import Struct

from omnistage_common.errors import InvalidRequest, UnsupportedModality
from omnistage_gateway.media.formats import AudioFormat, AudioInputFormat
from omnistage_gateway.openai.chat_body import (
    AudioRequest,
    ChatCompletionBody,
    InputAudio,
    InputAudioPart,
    MessageBody,
    StreamOptions,
    TextContentPart,
    VoiceReference,
)
from omnistage_gateway.openai.unsupported import UNSUPPORTED

__all__ = ["malformed_body", "mended_or_refused"]

_MAX_SHOWN: Final = 60
"""Characters of a client's value that a message repeats."""


_OTHER_PARTS: Final = {
    "image_url": "images",
    "image": "images",
    "video_url": "videos",
    "video": "videos",
    "file": "files",
}

_STRUCTS: Final[Mapping[str, type[Struct]]] = {
    "": ChatCompletionBody,
    "audio": AudioRequest,
    "audio.voice": VoiceReference,
    "messages[]": MessageBody,
    "messages[].content[].input_audio": InputAudio,
    "stream_options": StreamOptions,
}

_PARTS: Final[Mapping[str, type[Struct]]] = {
    "text": TextContentPart,
    "input_audio": InputAudioPart,
}


def _one_of(values: type[AudioFormat] | type[AudioInputFormat]) -> str:
    return "one of " + ", ".join(member.value for member in values)


_EXPECTED: Final[Mapping[str, str]] = {
    "": "an object with `model` and `messages`",
    "audio": "an object with `voice` and `format`",
    "audio.format": _one_of(AudioFormat),
    "audio.voice": "the name of a voice",
    "frequency_penalty": "a number from -2 to 2",
    "max_completion_tokens": "a whole number of at least 1",
    "max_tokens": "a whole number of at least 1",
    "metadata": "an object with strings as values",
    "messages": "a list of at least one message",
    "messages[]": "an object with `role` and `content`",
    "messages[].content": "a string or a list of content parts",
    "messages[].content[]": "an object with `type`",
    "messages[].content[].input_audio": "an object with `data` and `format`",
    "messages[].content[].input_audio.data": "audio in base64 (no `data:` prefix, padded)",
    "messages[].content[].input_audio.format": _one_of(AudioInputFormat),
    "messages[].content[].type": "`text` or `input_audio`",
    "messages[].role": "one of system, developer, user, assistant",
    "modalities": 'a list with "text", "audio" or both',
    "modalities[]": '"text" or "audio"',
    "model": "the name of a model",
    "n": "1 (send several requests for several answers)",
    "presence_penalty": "a number from -2 to 2",
    "seed": "a whole number of at most 64 bits",
    "stop": "a non-empty string or at most 4 of them",
    "stop[]": "a non-empty string",
    "temperature": "a number from 0 to 2",
    "top_p": "a number above 0, up to 1",
}

_WORDS: Final[Mapping[str, str]] = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "object": "an object",
    "str": "a string",
}
"""What msgspec's names of types are in prose."""

_MISSING: Final = re.compile(r"Object missing required field `(.+?)`")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_PATH: Final = re.compile(r" - at `\$(.*)`\Z", re.DOTALL)
_WANTED: Final = re.compile(r"Expected `([^`]+)`")
_STEP: Final = re.compile(r"\[(\d+)\]|\.?([^.\[\]]+)")


def malformed_body(error: Exception) -> InvalidRequest:
    """The error for a body that is no JSON."""
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return InvalidRequest(
        f"the body is not valid JSON in UTF-8: {reason[:200]}; send one JSON object", field="body"
    )


def mended_or_refused(body: bytes, error: msgspec.ValidationError) -> ChatCompletionBody:
    """The body without fields that ask for nothing, if only such stood in the way.

    Args:
        body: What did not decode.
        error: Why.

    Raises:
        InvalidRequest: Anything else.
    """
    try:
        document = msgspec.json.decode(body)
    except msgspec.ValidationError:  # a number that no float holds
        raise _refusal(error, None) from error
    except (msgspec.DecodeError, RecursionError) as malformed:
        raise malformed_body(malformed) from malformed
    if isinstance(document, dict):
        document = _without_unsupported(document)
    try:
        return msgspec.convert(document, ChatCompletionBody)
    except msgspec.ValidationError as precise:
        raise _refusal(precise, document) from precise


def _without_unsupported(document: dict[str, Any]) -> dict[str, Any]:
    for name in document.keys() & UNSUPPORTED.keys():
        rule = UNSUPPORTED[name]
        value = document[name]
        if value is not None and not any(_same(value, off) for off in rule.off):
            raise InvalidRequest(f"`{name}` is not supported: {rule.remedy}", field=name)
    return {name: value for name, value in document.items() if name not in UNSUPPORTED}


def _same(value: Any, off: Any) -> bool:
    return isinstance(value, bool) == isinstance(off, bool) and bool(value == off)


def _refusal(error: msgspec.ValidationError, document: Any) -> InvalidRequest:
    text = str(error)
    at = _PATH.search(text)
    path = at.group(1).removeprefix(".").removesuffix("[...]") if at else ""
    summary = text[: at.start()] if at else text
    if missing := _MISSING.fullmatch(summary):
        return _missing(_joined(path, missing.group(1)))
    if unknown := _UNKNOWN.fullmatch(summary):
        return _unknown(path, unknown.group(1), document)
    return _unexpected(path, summary, document)


def _missing(field: str) -> InvalidRequest:
    expected = _EXPECTED.get(_pattern(field))
    hint = f": give {expected}" if expected else ""
    return InvalidRequest(f"`{field}` is missing{hint}", field=field)


def _unknown(path: str, name: str, document: Any) -> InvalidRequest:
    owner = _STRUCTS.get(_pattern(path))
    if owner is None:
        part = _value_at(document, path)
        owner = _PARTS.get(part.get("type", "") if isinstance(part, dict) else "")
    known = owner.__struct_encode_fields__ if owner else ()
    near = get_close_matches(name[:_MAX_SHOWN], known, n=1)
    hint = f"; did you mean `{near[0]}`?" if near else "; leave it out"
    field = _joined(path, _shortened(name))
    return InvalidRequest(f"unknown field `{field}`{hint}", field=field)


def _unexpected(path: str, summary: str, document: Any) -> InvalidRequest:
    value = _value_at(document, path)
    pattern = _pattern(path)
    if pattern == "messages[].content[].type" and isinstance(value, str):
        return _other_part(path, value)
    if pattern == "modalities[]" and value in {"image", "video"}:
        return UnsupportedModality(
            f'`{path}`: answers come as text and audio, not as {value}; ask for "text" or "audio"',
            field=path,
        )
    if pattern == "messages[].role" and value in {"tool", "function"}:
        return InvalidRequest(
            f"`{path}`: messages of role {value} are not supported, since models here call no "
            "tools; put the result into a user message",
            field=path,
        )
    expected = _EXPECTED.get(pattern)
    if expected is None:
        wanted = _WANTED.match(summary)
        words = wanted.group(1).split(" | ") if wanted else ["another value"]
        expected = " or ".join(_WORDS.get(word, word) for word in words)
    return InvalidRequest(
        f"`{path or 'body'}`: expected {expected}, got {_shown(value)}", field=path or "body"
    )


def _other_part(path: str, kind: str) -> InvalidRequest:
    if kind in _OTHER_PARTS:
        return UnsupportedModality(
            f"`{path}`: {_OTHER_PARTS[kind]} are not supported as input; send `text` or "
            "`input_audio`",
            field=path,
        )
    if kind == "audio_url":
        return UnsupportedModality(
            f"`{path}`: audio is not fetched from URLs; send its bytes as `input_audio`",
            field=path,
        )
    return InvalidRequest(
        f"`{path}`: expected `text` or `input_audio`, got {_shown(kind)}", field=path
    )


def _pattern(path: str) -> str:
    return re.sub(r"\[\d+\]", "[]", path)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _value_at(document: Any, path: str) -> Any:
    value = document
    for index, name in _STEP.findall(path):
        if index and isinstance(value, list) and int(index) < len(value):
            value = value[int(index)]
        elif name and isinstance(value, dict):
            value = value.get(name)
        else:
            return None
    return value


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return msgspec.json.encode(_shortened(value)).decode()
    return _shortened(msgspec.json.encode(value).decode())
