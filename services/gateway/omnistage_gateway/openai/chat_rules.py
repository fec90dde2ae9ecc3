"""What there is to say about the body of a chat completion that was not taken."""

from collections.abc import Mapping
from typing import Any, Final

from omnistage_common.errors import InvalidRequest, UnsupportedModality
from omnistage_gateway.media.formats import AudioFormat, AudioInputFormat
from omnistage_gateway.openai.chat_body import (
    AudioRequest,
    ImageUrl,
    ImageUrlPart,
    InputAudio,
    InputAudioPart,
    MessageBody,
    StreamOptions,
    TextContentPart,
)
from omnistage_gateway.openai.fields import DIFFUSION_EXPECTED, VoiceReference
from omnistage_gateway.openai.refusals import BodyRules, one_of, shown
from omnistage_gateway.openai.unsupported import UNSUPPORTED

__all__ = ["CHAT_RULES"]

_PART: Final = "messages[].content[]"
_TAKEN_PARTS: Final = "`text`, `image_url` or `input_audio`"

_OTHER_PARTS: Final = {
    "video_url": "videos",
    "video": "videos",
    "file": "files",
}

_EXPECTED: Final[Mapping[str, str]] = {
    "": "an object with `model` and `messages`",
    "audio": "an object with `format` and, where the model has several, a `voice`",
    "audio.format": one_of(AudioFormat),
    "audio.voice": "the name of a voice",
    "frequency_penalty": "a number from -2 to 2",
    "height": "a whole number from 8 to 8192",
    "initial_codec_chunk_frames": "a whole number from 1 to 1000",
    "max_completion_tokens": "a whole number of at least 1",
    "max_tokens": "a whole number of at least 1",
    "metadata": "an object with strings as values",
    "messages": "a list of at least one message",
    "messages[]": "an object with `role` and `content`",
    "messages[].content": "a string or a list of content parts",
    _PART: "an object with `type`",
    f"{_PART}.image_url": "an object with `url`",
    f"{_PART}.image_url.detail": '"auto", "low" or "high"',
    f"{_PART}.image_url.url": "a `data:` URI with an image in base64",
    f"{_PART}.input_audio": "an object with `data` and `format`",
    f"{_PART}.input_audio.data": "audio in base64 (no `data:` prefix, padded)",
    f"{_PART}.input_audio.format": one_of(AudioInputFormat),
    f"{_PART}.type": _TAKEN_PARTS,
    "messages[].role": "one of system, developer, user, assistant",
    "modalities": 'a list of "text", "audio", "image" and "video"',
    "modalities[]": '"text", "audio", "image" or "video"',
    "model": "the name of a model",
    "n": "1 (send several requests for several answers)",
    "num_frames": "a whole number from 1 to 1024",
    "presence_penalty": "a number from -2 to 2",
    "seconds": "a number above 0, up to 600",
    "seed": "a whole number of at most 64 bits",
    "stop": "a non-empty string or at most 4 of them",
    "stop[]": "a non-empty string",
    "temperature": "a number from 0 to 2",
    "top_p": "a number above 0, up to 1",
    "width": "a whole number from 8 to 8192",
    **DIFFUSION_EXPECTED,
}


def _special(path: str, pattern: str, value: Any) -> InvalidRequest | None:
    if pattern == f"{_PART}.type" and isinstance(value, str):
        return _other_part(path, value)
    if pattern == "messages[].role" and value in {"tool", "function"}:
        return InvalidRequest(
            f"`{path}`: messages of role {value} are not supported, since models here call no "
            "tools; put the result into a user message",
            field=path,
        )
    return None


def _other_part(path: str, kind: str) -> InvalidRequest:
    if kind in _OTHER_PARTS:
        return UnsupportedModality(
            f"`{path}`: {_OTHER_PARTS[kind]} are not supported as input; send {_TAKEN_PARTS}",
            field=path,
        )
    if kind == "audio_url":
        return UnsupportedModality(
            f"`{path}`: audio is not fetched from URLs; send its bytes as `input_audio`",
            field=path,
        )
    if kind in {"image", "input_image"}:
        return InvalidRequest(
            f"`{path}`: images are sent as `image_url` with a `data:` URI, not as `{kind}`",
            field=path,
        )
    return InvalidRequest(f"`{path}`: expected {_TAKEN_PARTS}, got {shown(kind)}", field=path)


CHAT_RULES: Final = BodyRules(
    expected=_EXPECTED,
    structs={
        "audio": AudioRequest,
        "audio.voice": VoiceReference,
        "messages[]": MessageBody,
        f"{_PART}.image_url": ImageUrl,
        f"{_PART}.input_audio": InputAudio,
        "stream_options": StreamOptions,
    },
    kinds={"text": TextContentPart, "input_audio": InputAudioPart, "image_url": ImageUrlPart},
    unsupported=UNSUPPORTED,
    special=_special,
)
"""For `POST /v1/chat/completions`."""
