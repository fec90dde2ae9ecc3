"""From the body of a chat completion request to the values the gateway works with.

`parse_chat_request` is strict: what it returns is complete and consistent, and what it does not
take it refuses by name, so that a request never means less than its sender wrote. Whether the
model can do what is asked (its modalities, its voices) is decided later, by the plan; audio is
carried as it came and decoded by `omnistage_gateway.media.audio`.
"""

from typing import Final

import msgspec
from msgspec import Struct

from omnistage_common.errors import InvalidRequest
from omnistage_common.ids import ModelName
from omnistage_common.payloads import AudioPart, Conversation, Message, Parameters, TextPart
from omnistage_common.pipeline.plan import Modality
from omnistage_gateway.media.formats import AudioFormat, EncodedAudio
from omnistage_gateway.openai.chat_body import (
    ChatCompletionBody,
    InputAudioPart,
    MessageBody,
    TextContentPart,
)
from omnistage_gateway.openai.refusals import malformed_body, mended_or_refused

__all__ = ["ChatRequest", "parse_chat_request"]

_DECODER: Final = msgspec.json.Decoder(ChatCompletionBody)
_TEXT: Final = frozenset({Modality.TEXT})
_TEXT_AND_AUDIO: Final = frozenset({Modality.TEXT, Modality.AUDIO})


class ChatRequest(Struct, frozen=True, kw_only=True):
    """What a client asks for."""

    model: ModelName
    conversation: Conversation
    audio_inputs: tuple[EncodedAudio, ...] = ()
    """In the order of the conversation's `AudioPart.index`; not decoded yet."""
    parameters: Parameters
    modalities: frozenset[Modality]
    """What the answer consists of; text always does."""
    audio_format: AudioFormat | None = None
    """Set exactly when `modalities` has audio."""
    stream: bool = False
    include_usage: bool = False
    """End the stream with a chunk of usage."""


def parse_chat_request(body: bytes) -> ChatRequest:
    """The request that a body holds.

    Args:
        body: JSON as the client sent it.

    Raises:
        InvalidRequest: The field at fault is named; `body` when it is not JSON.
        UnsupportedModality: It holds or asks for something besides text and audio.
    """
    try:
        wire = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        wire = mended_or_refused(body, error)
    except (msgspec.DecodeError, RecursionError) as error:
        raise malformed_body(error) from error
    audio_inputs: list[EncodedAudio] = []
    messages = tuple(
        [
            Message(role=message.role, parts=_parts(message, index, audio_inputs))
            for index, message in enumerate(wire.messages)
        ]
    )
    if not any(message.role == "user" for message in messages):
        raise InvalidRequest(
            "`messages` has no message of role user; add the question", field="messages"
        )
    speaks = _speaks(wire)
    options = wire.stream_options
    if options is not None and not wire.stream:
        raise InvalidRequest(
            "`stream_options` needs `stream: true`; set it or leave the options out",
            field="stream_options",
        )
    return ChatRequest(
        model=ModelName(wire.model),
        conversation=Conversation(messages=messages),
        audio_inputs=tuple(audio_inputs),
        parameters=_parameters(wire, speaks=speaks),
        modalities=_TEXT_AND_AUDIO if speaks else _TEXT,
        audio_format=wire.audio.format if speaks and wire.audio else None,
        stream=bool(wire.stream),
        include_usage=options is not None and bool(options.include_usage),
    )


def _speaks(wire: ChatCompletionBody) -> bool:
    if wire.modalities is None or "audio" not in wire.modalities:
        return False
    if wire.audio is None:
        raise InvalidRequest(
            "`audio` is missing although `modalities` asks for audio; add "
            '`"audio": {"voice": …, "format": "wav"}`',
            field="audio",
        )
    return True


def _parameters(wire: ChatCompletionBody, *, speaks: bool) -> Parameters:
    limit = wire.max_completion_tokens
    if limit is None:
        limit = wire.max_tokens
    elif wire.max_tokens not in {None, limit}:
        raise InvalidRequest(
            f"`max_tokens` is {wire.max_tokens}, but `max_completion_tokens` is {limit}; "
            "they are two names of one thing, send the second alone",
            field="max_tokens",
        )
    stop = wire.stop
    voice = wire.audio.voice if speaks and wire.audio else None
    return Parameters(
        max_tokens=limit,
        temperature=wire.temperature,
        top_p=wire.top_p,
        seed=wire.seed,
        stop=() if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        voice=voice if voice is None or isinstance(voice, str) else voice.id,
        ignore_eos=bool(wire.ignore_eos),
    )


def _parts(
    message: MessageBody, index: int, audio_inputs: list[EncodedAudio]
) -> tuple[TextPart | AudioPart, ...]:
    """The message's parts; its recordings are appended to `audio_inputs`."""
    if message.tool_calls or message.function_call is not None:
        name = "tool_calls" if message.tool_calls else "function_call"
        raise InvalidRequest(
            f"`messages[{index}].{name}` is not supported: models here call no tools; "
            "tell what was called in the message's content",
            field=f"messages[{index}].{name}",
        )
    content = message.content
    if isinstance(content, list):
        return _listed_parts(content, message.role, index, audio_inputs)
    if content:
        return (TextPart(text=content),)
    if message.role == "assistant" and message.audio is not None and message.audio.transcript:
        return (TextPart(text=message.audio.transcript),)
    if message.role == "assistant" and message.refusal:
        return (TextPart(text=message.refusal),)
    raise _empty(index)


def _listed_parts(
    content: list[TextContentPart | InputAudioPart],
    role: str,
    index: int,
    audio_inputs: list[EncodedAudio],
) -> tuple[TextPart | AudioPart, ...]:
    parts: list[TextPart | AudioPart] = []
    for place, part in enumerate(content):
        if isinstance(part, TextContentPart):
            if part.text:
                parts.append(TextPart(text=part.text))
            continue
        field = f"messages[{index}].content[{place}].input_audio"
        if role != "user":
            raise InvalidRequest(
                f"`{field}`: only user messages can hold audio, this one is of role {role}",
                field=field,
            )
        sent = part.input_audio
        if not sent.data:
            raise InvalidRequest(
                f"`{field}.data` is empty; send the audio as base64", field=f"{field}.data"
            )
        parts.append(AudioPart(index=len(audio_inputs)))
        audio_inputs.append(EncodedAudio(data=sent.data, format=sent.format, field=field))
    if not parts:
        raise _empty(index)
    return tuple(parts)


def _empty(index: int) -> InvalidRequest:
    field = f"messages[{index}].content"
    return InvalidRequest(
        f"`{field}` is empty; say something or leave the message out", field=field
    )
