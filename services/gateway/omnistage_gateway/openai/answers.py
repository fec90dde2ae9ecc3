"""The body of a chat completion that is not streamed, and what streams share with it.

The official client ignores what it does not know, so the answer carries one extension object,
`omnistage`: the request's id, what was recognised in the client's audio, and what each stage took.
"""

from base64 import b64encode
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from omnistage_common.ids import ModelName, ReplicaId, RequestId, StageName
from omnistage_common.links.frames import FinishReason

__all__ = [
    "Answer",
    "AnswerAudio",
    "AnswerChoice",
    "AnswerMessage",
    "AnswerUsage",
    "ChatCompletionAnswer",
    "MediaPart",
    "RequestReport",
    "StageReport",
    "TokenDetails",
    "audio_id",
    "chat_completion",
    "completion_id",
    "finish_word",
    "media_part",
]


class StageReport(Struct, frozen=True, kw_only=True):
    """What a request took on one stage."""

    name: StageName
    replica: ReplicaId
    queue_ms: float
    """Waiting for a place in the engine."""
    run_ms: float
    """In the engine."""
    first_output_ms: float | None
    """From the place in the engine to the first output; null when there was none."""
    input_tokens: int = 0
    output_tokens: int = 0


class RequestReport(Struct, frozen=True, kw_only=True):
    """The extension object `omnistage`."""

    request_id: RequestId
    transcripts: tuple[str, ...] = ()
    """What was recognised in each audio input, in order; empty when no stage recognised any."""
    stages: tuple[StageReport, ...] = ()
    total_ms: float
    """From the request's head to the end of its last stage."""


class TokenDetails(Struct, frozen=True, kw_only=True):
    """Tokens by what they stand for."""

    audio_tokens: int = 0
    text_tokens: int = 0


class AnswerUsage(Struct, frozen=True, kw_only=True):
    """Tokens of the whole request, in OpenAI's shape."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: TokenDetails | UnsetType = UNSET

    @classmethod
    def of(
        cls, prompt_tokens: int, text_tokens: int, audio_tokens: int | None = None
    ) -> "AnswerUsage":
        """The usage of a request.

        Args:
            prompt_tokens: Read by the stage that wrote the text.
            text_tokens: Written as text.
            audio_tokens: Written as codec frames or the like; None when nothing counts them.
        """
        completion_tokens = text_tokens + (audio_tokens or 0)
        return cls(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            completion_tokens_details=UNSET
            if audio_tokens is None
            else TokenDetails(audio_tokens=audio_tokens, text_tokens=text_tokens),
        )


class Answer(Struct, frozen=True, kw_only=True):
    """A finished answer, composed of the final outputs of the stages."""

    created: int
    """Seconds since the Unix epoch."""
    model: ModelName
    text: str
    audio: bytes | None = None
    """Encoded in the format that was asked for; None when audio was not asked for."""
    media: tuple["MediaPart", ...] = ()
    """Images and videos; with any of them, the content of the message is a list of parts."""
    finish_reason: FinishReason
    usage: AnswerUsage
    report: RequestReport


class AnswerAudio(Struct, frozen=True):
    """Audio of an answer, on the wire."""

    id: str
    data: bytes
    """Base64 in JSON."""
    expires_at: int
    """Equal to `created`: nothing is kept for later turns."""
    transcript: str


class MediaUrl(Struct, frozen=True):
    """Where an image or a video is, on the wire: within the URL itself."""

    url: str


class ImagePart(Struct, frozen=True, tag_field="type", tag="image_url"):
    """An image within a message, on the wire."""

    image_url: MediaUrl


class VideoPart(Struct, frozen=True, tag_field="type", tag="video_url"):
    """A video within a message, on the wire."""

    video_url: MediaUrl


class TextPart(Struct, frozen=True, tag_field="type", tag="text"):
    """Text within a message that has other parts too, on the wire."""

    text: str


MediaPart = ImagePart | VideoPart


class AnswerMessage(Struct, frozen=True):
    """The message of an answer, on the wire."""

    role: Literal["assistant"]
    content: str | tuple[TextPart | ImagePart | VideoPart, ...]
    refusal: None = None
    audio: AnswerAudio | UnsetType = UNSET


class AnswerChoice(Struct, frozen=True):
    """The one choice of an answer, on the wire."""

    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: None = None


class ChatCompletionAnswer(Struct, frozen=True):
    """The whole body, on the wire."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: tuple[AnswerChoice]
    usage: AnswerUsage
    omnistage: RequestReport


_ENCODE: Final = msgspec.json.Encoder().encode


def completion_id(request_id: RequestId) -> str:
    """The id of an answer and of every chunk of it."""
    return f"chatcmpl-{request_id}"


def audio_id(request_id: RequestId) -> str:
    """The id of an answer's audio."""
    return f"audio-{request_id}"


def finish_word(reason: FinishReason) -> str:
    """OpenAI's word for a reason; a stage that does not generate has simply stopped."""
    return reason.value or FinishReason.STOP.value


def media_part(media_type: str, data: bytes) -> MediaPart:
    """An encoded image or video as a part of a message.

    Args:
        media_type: What HTTP calls it, e.g. `image/png`.
        data: The file.
    """
    url = MediaUrl(f"data:{media_type};base64,{b64encode(data).decode()}")
    return VideoPart(url) if media_type.startswith("video/") else ImagePart(url)


def chat_completion(answer: Answer) -> bytes:
    """The body of an answer.

    With audio, `content` and `audio.transcript` both hold the text; with images or videos, `content`
    is a list of parts, the text first if there is any.
    """
    request_id = answer.report.request_id
    audio: AnswerAudio | UnsetType = UNSET
    if answer.audio is not None:
        audio = AnswerAudio(audio_id(request_id), answer.audio, answer.created, answer.text)
    content: str | tuple[TextPart | MediaPart, ...] = answer.text
    if answer.media:
        content = (TextPart(answer.text), *answer.media) if answer.text else answer.media
    message = AnswerMessage("assistant", content, None, audio)
    return _ENCODE(
        ChatCompletionAnswer(
            completion_id(request_id),
            "chat.completion",
            answer.created,
            answer.model,
            (AnswerChoice(0, message, finish_word(answer.finish_reason)),),
            answer.usage,
            answer.report,
        )
    )
