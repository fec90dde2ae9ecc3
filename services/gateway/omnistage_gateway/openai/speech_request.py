"""The body of `POST /v1/audio/speech`: its wire shape, and what the gateway makes of it.

The manner is that of chat completions (`omnistage_gateway.openai.chat_request`): what changes the
speech is understood or refused by name.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from omnistage_common.errors import InvalidRequest
from omnistage_common.ids import ModelName
from omnistage_common.payloads import Parameters
from omnistage_gateway.media.formats import AudioFormat
from omnistage_gateway.openai.fields import (
    ChunkFrames,
    NonEmpty,
    Seed,
    VoiceReference,
    voice_name,
)
from omnistage_gateway.openai.refusals import BodyReader, BodyRules, Unsupported, one_of

__all__ = [
    "SPEECH_UNSUPPORTED",
    "Delivery",
    "SpeechBody",
    "SpeechFormat",
    "SpeechRequest",
    "parse_speech_request",
]


class SpeechFormat(Enum):
    """What speech can be encoded as; the value is its name at this endpoint."""

    MP3 = "mp3"
    OPUS = "opus"
    FLAC = "flac"
    WAV = "wav"
    PCM = "pcm"

    @property
    def audio_format(self) -> AudioFormat:
        """The same by its general name."""
        return AudioFormat.PCM16 if self is SpeechFormat.PCM else AudioFormat(self.value)


class Delivery(Enum):
    """How speech comes; the value is its name in a request, empty when the client names none."""

    WHOLE = ""
    """A file of known length."""
    AUDIO = "audio"
    """The body of a file, as it is made."""
    SSE = "sse"
    """Server-sent events, as it is made."""


class _StreamFormat(Enum):
    AUDIO = "audio"
    SSE = "sse"


class SpeechBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole body, on the wire."""

    model: NonEmpty
    input: NonEmpty
    voice: NonEmpty | VoiceReference | None = None
    """None for the model's own."""
    response_format: SpeechFormat | None = None
    speed: Annotated[float, Meta(ge=0.25, le=4)] | None = None
    stream_format: _StreamFormat | None = None
    seed: Seed | None = None
    """An extension, as is the one below."""
    initial_codec_chunk_frames: ChunkFrames | None = None


class SpeechRequest(Struct, frozen=True, kw_only=True):
    """What a client asks for."""

    model: ModelName
    text: str
    parameters: Parameters
    format: AudioFormat
    delivery: Delivery
    first_frames: int | None
    """Wish for the first piece of sound, in frames of the model's codec."""


_NO_CLONING: Final = "leave it out; voices are not made from recordings"

SPEECH_UNSUPPORTED: Final[Mapping[str, Unsupported]] = {
    # OpenAI's own.
    "instructions": Unsupported(
        remedy="leave it out; a voice reads as it reads, choose another `voice`", off=("",)
    ),
    # Extensions of other servers that clients pass along.
    "language": Unsupported(remedy="leave it out; a voice has its language", off=("auto", "Auto")),
    "max_new_tokens": Unsupported(remedy="leave it out; the whole input is spoken"),
    "ref_audio": Unsupported(remedy=_NO_CLONING),
    "ref_text": Unsupported(remedy=_NO_CLONING),
    "sample_rate": Unsupported(remedy="leave it out; speech has the rate of the model's voice"),
    "speaker": Unsupported(remedy="use `voice` instead"),
    "speaker_embedding": Unsupported(remedy=_NO_CLONING),
    "stream": Unsupported(remedy='use `stream_format` instead: "audio" or "sse"', off=(False,)),
    "task_type": Unsupported(remedy="leave it out; the model has one task"),
    "word_timestamps": Unsupported(remedy="leave it out; words are not timed", off=(False,)),
}
"""Known fields that would change the speech, and what to do instead."""

_EXPECTED: Final[Mapping[str, str]] = {
    "": "an object with `model` and `input`",
    "initial_codec_chunk_frames": "a whole number from 1 to 1000",
    "input": "the text to be spoken",
    "model": "the name of a model",
    "response_format": one_of(SpeechFormat),
    "seed": "a whole number of at most 64 bits",
    "speed": "a number from 0.25 to 4",
    "stream_format": '"audio" or "sse"',
    "voice": "the name of a voice",
}


def _special(path: str, pattern: str, value: Any) -> InvalidRequest | None:
    if pattern == "response_format" and value == "aac":
        return InvalidRequest(
            f"`response_format`: aac is not encoded here; use {one_of(SpeechFormat)}", field=path
        )
    return None


_BODIES: Final = BodyReader(
    SpeechBody,
    BodyRules(
        expected=_EXPECTED,
        structs={"voice": VoiceReference},
        unsupported=SPEECH_UNSUPPORTED,
        special=_special,
    ),
)


def parse_speech_request(body: bytes) -> SpeechRequest:
    """The request that a body holds.

    Args:
        body: JSON as the client sent it.

    Raises:
        InvalidRequest: The field at fault is named; `body` when it is not JSON.
    """
    wire = _BODIES.read(body)
    if not wire.input.strip():
        raise InvalidRequest("`input` is blank; send the text to be spoken", field="input")
    return SpeechRequest(
        model=ModelName(wire.model),
        text=wire.input,
        parameters=Parameters(voice=voice_name(wire.voice), speed=wire.speed, seed=wire.seed),
        format=(wire.response_format or SpeechFormat.MP3).audio_format,
        delivery=Delivery(wire.stream_format.value) if wire.stream_format else Delivery.WHOLE,
        first_frames=wire.initial_codec_chunk_frames,
    )
