"""The events of speech that is streamed as `sse`, in OpenAI's shapes."""

from typing import Final

from msgspec import UNSET, Struct, UnsetType

from omnistage_gateway.openai.answers import AnswerUsage, RequestReport
from omnistage_gateway.openai.events import named_event

__all__ = ["speech_delta", "speech_done"]

_DELTA: Final = "speech.audio.delta"
_DONE: Final = "speech.audio.done"


class SpeechDelta(Struct, frozen=True):
    """A piece of sound, on the wire."""

    type: str
    audio: bytes
    """Base64 in JSON."""


class SpeechUsage(Struct, frozen=True):
    """Tokens, on the wire."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class SpeechDone(Struct, frozen=True):
    """The end, on the wire."""

    type: str
    usage: SpeechUsage
    omnistage: RequestReport | UnsetType = UNSET


def speech_delta(sound: bytes) -> bytes:
    """The event of a piece of the encoded sound; nothing when there is none."""
    return named_event(_DELTA, SpeechDelta(_DELTA, sound)) if sound else b""


def speech_done(usage: AnswerUsage, report: RequestReport) -> bytes:
    """The event that ends the stream."""
    counted = SpeechUsage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
    return named_event(_DONE, SpeechDone(_DONE, counted, report))
