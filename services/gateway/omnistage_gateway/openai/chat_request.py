"""From the body of a chat completion request to the values the gateway works with.

`parse_chat_request` is strict: what it returns is complete and consistent, and what it does not
take it refuses by name, so that a request never means less than its sender wrote. Whether the
model can do what is asked (its modalities, its voices) is decided later, by the plan; audio and
images are carried as they came and decoded by `omnistage_gateway.media`.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from omnistage_common.errors import InvalidRequest
from omnistage_common.ids import ModelName
from omnistage_common.payloads import (
    AudioPart,
    Conversation,
    DiffusionParameters,
    ImagePart,
    Message,
    Parameters,
    TextPart,
)
from omnistage_common.pipeline.plan import Modality
from omnistage_gateway.media.formats import AudioFormat, EncodedAudio, EncodedImage
from omnistage_gateway.openai.chat_body import (
    ChatCompletionBody,
    ImageUrlPart,
    InputAudioPart,
    MessageBody,
    TextContentPart,
)
from omnistage_gateway.openai.chat_rules import CHAT_RULES
from omnistage_gateway.openai.data_uris import image_in
from omnistage_gateway.openai.fields import (
    check_pixels,
    diffusion_parameters,
    size_of,
    voice_name,
)
from omnistage_gateway.openai.refusals import BodyReader

__all__ = ["MAX_IMAGES", "ChatRequest", "parse_chat_request"]

MAX_IMAGES: Final = 64
"""Images in one request."""

_BODIES: Final = BodyReader(ChatCompletionBody, CHAT_RULES)
_DENOISING: Final = (
    "size",
    "width",
    "height",
    "num_frames",
    "seconds",
    "negative_prompt",
    "num_inference_steps",
    "guidance_scale",
    "true_cfg_scale",
)
"""Fields that mean something only to a model that denoises."""


class ChatRequest(Struct, frozen=True, kw_only=True):
    """What a client asks for."""

    model: ModelName
    conversation: Conversation
    audio_inputs: tuple[EncodedAudio, ...] = ()
    """In the order of the conversation's `AudioPart.index`; not decoded yet."""
    image_inputs: tuple[EncodedImage, ...] = ()
    """In the order of the conversation's `ImagePart.index`; not decoded yet."""
    parameters: Parameters
    modalities: frozenset[Modality] | None = None
    """What the answer shall consist of; None when the client leaves it to the model."""
    audio_format: AudioFormat | None = None
    """How audio shall be encoded; None when the client does not say, and never None when
    `modalities` names audio."""
    stream: bool = False
    include_usage: bool = False
    """End the stream with a chunk of usage."""
    first_frames: int | None = None
    """Wish for the first piece of sound, in frames of the model's codec."""
    denoising_field: str = ""
    """A field that was sent and means something only to a model that denoises."""


def parse_chat_request(body: bytes) -> ChatRequest:
    """The request that a body holds.

    Args:
        body: JSON as the client sent it.

    Raises:
        InvalidRequest: The field at fault is named; `body` when it is not JSON.
        UnsupportedModality: It holds something besides text, audio and images.
    """
    wire = _BODIES.read(body)
    media = _Media()
    messages = tuple(
        [
            Message(role=message.role, parts=_parts(message, index, media))
            for index, message in enumerate(wire.messages)
        ]
    )
    if not any(message.role == "user" for message in messages):
        raise InvalidRequest(
            "`messages` has no message of role user; add the question", field="messages"
        )
    options = wire.stream_options
    if options is not None and not wire.stream:
        raise InvalidRequest(
            "`stream_options` needs `stream: true`; set it or leave the options out",
            field="stream_options",
        )
    modalities = _modalities(wire)
    denoising = _denoising_field(wire)
    return ChatRequest(
        model=ModelName(wire.model),
        conversation=Conversation(messages=messages),
        audio_inputs=tuple(media.audio),
        image_inputs=tuple(media.images),
        parameters=_parameters(wire, _diffusion(wire) if denoising else None),
        modalities=modalities,
        audio_format=wire.audio.format if wire.audio else None,
        stream=bool(wire.stream),
        include_usage=options is not None and bool(options.include_usage),
        first_frames=wire.initial_codec_chunk_frames,
        denoising_field=denoising,
    )


def _modalities(wire: ChatCompletionBody) -> frozenset[Modality] | None:
    if wire.modalities is None:
        return None
    if Modality.AUDIO in wire.modalities and wire.audio is None:
        raise InvalidRequest(
            "`audio` is missing although `modalities` asks for audio; add "
            '`"audio": {"voice": …, "format": "wav"}`',
            field="audio",
        )
    return frozenset(wire.modalities)


def _denoising_field(wire: ChatCompletionBody) -> str:
    """The first field of the kind that was sent."""
    for name in _DENOISING:
        if getattr(wire, name) is not None:
            return name
    return ""


def _diffusion(wire: ChatCompletionBody) -> DiffusionParameters:
    width, height = wire.width, wire.height
    if wire.size is not None:
        if width is not None or height is not None:
            name = "width" if width is not None else "height"
            raise InvalidRequest(
                f"`{name}` and `size` are two names of one thing; send `size` alone", field=name
            )
        width, height = size_of(wire.size)
    elif width is not None and height is not None:
        check_pixels(width, height, "width")
    shared = diffusion_parameters(wire, width=width, height=height)
    if wire.num_frames is None and wire.seconds is None:
        return shared
    return replace(shared, frames=wire.num_frames, seconds=wire.seconds)


def _parameters(wire: ChatCompletionBody, diffusion: DiffusionParameters | None) -> Parameters:
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
    return Parameters(
        max_tokens=limit,
        temperature=wire.temperature,
        top_p=wire.top_p,
        seed=wire.seed,
        stop=() if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        voice=voice_name(wire.audio.voice) if wire.audio else None,
        ignore_eos=bool(wire.ignore_eos),
        diffusion=diffusion,
    )


class _Media:
    """The recordings and images of a request, in order."""

    __slots__ = ("audio", "images")

    def __init__(self) -> None:
        self.audio: list[EncodedAudio] = []
        self.images: list[EncodedImage] = []

    def add_audio(self, part: InputAudioPart, field: str) -> AudioPart:
        sent = part.input_audio
        if not sent.data:
            raise InvalidRequest(
                f"`{field}.data` is empty; send the audio as base64", field=f"{field}.data"
            )
        self.audio.append(EncodedAudio(data=sent.data, format=sent.format, field=field))
        return AudioPart(index=len(self.audio) - 1)

    def add_image(self, part: ImageUrlPart, field: str) -> ImagePart:
        if len(self.images) == MAX_IMAGES:
            raise InvalidRequest(
                f"`{field}` is one image too many; a request can have {MAX_IMAGES}", field=field
            )
        self.images.append(image_in(part.image_url.url, f"{field}.url"))
        return ImagePart(index=len(self.images) - 1)


def _parts(
    message: MessageBody, index: int, media: _Media
) -> tuple[TextPart | AudioPart | ImagePart, ...]:
    """The message's parts; its recordings and images are appended to `media`."""
    if message.tool_calls or message.function_call is not None:
        name = "tool_calls" if message.tool_calls else "function_call"
        raise InvalidRequest(
            f"`messages[{index}].{name}` is not supported: models here call no tools; "
            "tell what was called in the message's content",
            field=f"messages[{index}].{name}",
        )
    content = message.content
    if isinstance(content, list):
        return _listed_parts(content, message.role, index, media)
    if content:
        return (TextPart(text=content),)
    if message.role == "assistant" and message.audio is not None and message.audio.transcript:
        return (TextPart(text=message.audio.transcript),)
    if message.role == "assistant" and message.refusal:
        return (TextPart(text=message.refusal),)
    raise _empty(index)


def _listed_parts(
    content: list[TextContentPart | InputAudioPart | ImageUrlPart],
    role: str,
    index: int,
    media: _Media,
) -> tuple[TextPart | AudioPart | ImagePart, ...]:
    parts: list[TextPart | AudioPart | ImagePart] = []
    for place, part in enumerate(content):
        if isinstance(part, TextContentPart):
            if part.text:
                parts.append(TextPart(text=part.text))
            continue
        is_audio = isinstance(part, InputAudioPart)
        field = f"messages[{index}].content[{place}].{'input_audio' if is_audio else 'image_url'}"
        if role != "user":
            raise InvalidRequest(
                f"`{field}`: only user messages can hold {'audio' if is_audio else 'images'}, "
                f"this one is of role {role}",
                field=field,
            )
        if isinstance(part, InputAudioPart):
            parts.append(media.add_audio(part, field))
        else:
            parts.append(media.add_image(part, field))
    if not parts:
        raise _empty(index)
    return tuple(parts)


def _empty(index: int) -> InvalidRequest:
    field = f"messages[{index}].content"
    return InvalidRequest(
        f"`{field}` is empty; say something or leave the message out", field=field
    )
