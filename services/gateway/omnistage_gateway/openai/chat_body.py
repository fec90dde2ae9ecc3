"""The body of `POST /v1/chat/completions`, as it stands on the wire.

These structs mirror a foreign schema field by field; nothing outside this folder sees them. They
hold what is accepted, harmless fields included: a body with any other field, or a value out of
range, does not decode, and `omnistage_gateway.openai.refusals` says why. Ranges are part of the
types, so they reach the published JSON schema as well.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from omnistage_common.pipeline.plan import Modality
from omnistage_gateway.media.formats import AudioFormat, AudioInputFormat
from omnistage_gateway.openai.fields import (
    ChunkFrames,
    DiffusionFields,
    NonEmpty,
    Seed,
    Side,
    VoiceReference,
)

__all__ = [
    "AudioReference",
    "AudioRequest",
    "ChatCompletionBody",
    "ImageUrl",
    "ImageUrlPart",
    "InputAudio",
    "InputAudioPart",
    "MessageBody",
    "StreamOptions",
    "TextContentPart",
]

_TokenCount = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]


class TextContentPart(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"
):
    """A piece of text within a message."""

    text: str
    prompt_cache_breakpoint: Any = None


class InputAudio(Struct, frozen=True, forbid_unknown_fields=True):
    """A recording."""

    data: bytes
    """Base64 in JSON."""
    format: AudioInputFormat


class InputAudioPart(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="input_audio"
):
    """A recording within a message."""

    input_audio: InputAudio
    prompt_cache_breakpoint: Any = None


class ImageUrl(Struct, frozen=True, forbid_unknown_fields=True):
    """An image."""

    url: str
    """`data:image/…;base64,…`."""
    detail: Literal["auto", "low", "high"] | None = None
    """Without effect: models get the image as it is."""


class ImageUrlPart(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="image_url"
):
    """An image within a message."""

    image_url: ImageUrl
    prompt_cache_breakpoint: Any = None


class AudioReference(Struct, frozen=True):
    """An earlier spoken answer that a client sends back with the conversation."""

    id: str = ""
    transcript: str = ""


class MessageBody(Struct, frozen=True, forbid_unknown_fields=True):
    """One message."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextContentPart | InputAudioPart | ImageUrlPart] | None = None
    name: str | None = None
    audio: AudioReference | None = None
    """Of an assistant message."""
    refusal: str | None = None
    annotations: Any = None
    tool_calls: Any = None
    """Anything but null and an empty list is refused."""
    function_call: Any = None
    """Anything but null is refused."""


class AudioRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """How the answer should sound."""

    format: AudioFormat
    voice: NonEmpty | VoiceReference | None = None
    """None for the model's own."""


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """What a stream holds besides the answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


# More than 12 fields: it mirrors OpenAI's schema, which is flat.
class ChatCompletionBody(DiffusionFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole body."""

    model: NonEmpty
    messages: Annotated[list[MessageBody], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    modalities: Annotated[list[Modality], Meta(min_length=1)] | None = None
    audio: AudioRequest | None = None
    max_completion_tokens: _TokenCount | None = None
    max_tokens: _TokenCount | None = None
    """OpenAI's older name of `max_completion_tokens`."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Literal[1] | None = None
    stop: NonEmpty | Annotated[list[NonEmpty], Meta(max_length=4)] | None = None
    seed: Seed | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    ignore_eos: bool | None = None
    """An extension: generate `max_tokens` whatever the model says; for load tests."""
    initial_codec_chunk_frames: ChunkFrames | None = None
    """An extension: size of the first piece of sound, in frames of the model's codec."""
    width: Side | None = None
    """An extension, as are the three below and `DiffusionFields`: for models that denoise."""
    height: Side | None = None
    num_frames: Annotated[int, Meta(ge=1, le=1024)] | None = None
    seconds: Annotated[float, Meta(gt=0, le=600)] | None = None
    """Length of sound."""
    metadata: dict[str, str] | None = None
    """This and all below change no answer and are accepted without effect."""
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    user: str | None = None
