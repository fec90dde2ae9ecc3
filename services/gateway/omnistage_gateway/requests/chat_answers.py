"""Composes the outputs of the stages into one chat completion, whole or streamed.

Text and sound go out as they come; an image does when it is there; a video is encoded when its last
frame is. After the first piece that was sent, a failure is an event of the stream.
"""

import asyncio
import time
from typing import Final

from omnistage_common.errors import OmnistageError
from omnistage_common.ids import ModelName, RequestId, StageName
from omnistage_common.links.frames import FinishReason
from omnistage_common.payloads import Content, Tensor
from omnistage_common.pipeline.plan import Modality, OutputPlan
from omnistage_gateway.media.audio import AudioStreamEncoder, encode_audio
from omnistage_gateway.media.formats import AudioFormat, ImageFormat
from omnistage_gateway.media.video import VIDEO_TYPE, encode_video
from omnistage_gateway.openai.answers import (
    Answer,
    AnswerUsage,
    MediaPart,
    RequestReport,
    chat_completion,
    media_part,
)
from omnistage_gateway.openai.chunks import DONE, ChunkEncoder
from omnistage_gateway.openai.events import error_event
from omnistage_gateway.requests.answering import (
    Send,
    Transcripts,
    Waiting,
    kept,
    made_image,
    tensor,
    text,
)

__all__ = ["StreamedChat", "WholeChat"]

_IMAGES: Final = ImageFormat.PNG
"""A chat does not say how its images shall be encoded, so nothing of them is lost."""


class _Videos:
    """Frames of the videos of an answer, until all of them are there."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[Tensor]] = {}

    def add(self, index: int, content: Content) -> None:
        """Takes some frames of one video."""
        self._pieces.setdefault(index, []).append(kept(content))

    async def encoded(self) -> list[bytes]:
        """The videos as files, in order.

        Raises:
            MissingOutput: One has no frames.
            EngineFailed: One is no video.
        """
        return [
            await asyncio.to_thread(encode_video, self._pieces[index])
            for index in sorted(self._pieces)
        ]


class WholeChat(Waiting):
    """Keeps everything until the end; one JSON body."""

    def __init__(self, audio_format: AudioFormat | None) -> None:
        """Makes an answer of nothing.

        Args:
            audio_format: How audio shall be encoded; None when none is wanted.
        """
        self.transcripts = Transcripts()
        self._format = audio_format
        self._text: list[str] = []
        self._audio: list[Tensor] = []
        self._images: list[tuple[int, Tensor]] = []
        self._videos = _Videos()

    def deliver(self, plan: OutputPlan, content: Content, index: int) -> None:
        """See `AnswerSink`."""
        if plan.modality is None:
            self.transcripts.add(index, text(content))
        elif plan.modality is Modality.TEXT:
            self._text.append(text(content))
        elif plan.modality is Modality.AUDIO:
            self._audio.append(kept(content))
        elif plan.modality is Modality.IMAGE:
            self._images.append((index, kept(content)))
        else:
            self._videos.add(index, content)

    async def body(
        self,
        *,
        model: ModelName,
        finish_reason: FinishReason,
        usage: AnswerUsage,
        report: RequestReport,
    ) -> bytes:
        """The answer as JSON.

        Raises:
            MissingOutput: Audio was asked for and not a sample came.
            EngineFailed: What came is not what the plan says.
        """
        return chat_completion(
            Answer(
                created=int(time.time()),
                model=model,
                text="".join(self._text),
                audio=await self._encoded_audio(),
                media=await self._media(),
                finish_reason=finish_reason,
                usage=usage,
                report=report,
            )
        )

    async def _media(self) -> tuple[MediaPart, ...]:
        parts: list[MediaPart] = []
        for _, image in sorted(self._images, key=lambda item: item[0]):
            made = await made_image(image, _IMAGES)
            parts.append(media_part(made.format.media_type, made.data))
        parts += [media_part(VIDEO_TYPE, video) for video in await self._videos.encoded()]
        return tuple(parts)

    async def _encoded_audio(self) -> bytes | None:
        if self._format is None:
            return None
        if self._format.streams:
            return encode_audio(self._audio, self._format)
        return await asyncio.to_thread(encode_audio, self._audio, self._format)


class StreamedChat:
    """Sends pieces as they come; server-sent events, all of one turn in one message."""

    def __init__(
        self,
        send: Send,
        *,
        request_id: RequestId,
        model: ModelName,
        audio_format: AudioFormat | None,
    ) -> None:
        self.transcripts = Transcripts()
        self.started = False
        """Whether anything was sent."""
        self._send = send
        self._chunks = ChunkEncoder(
            request_id, int(time.time()), model, audio=audio_format is not None
        )
        self._audio = None if audio_format is None else AudioStreamEncoder(audio_format)
        self._streams = audio_format is None or audio_format.streams
        self._images: list[Tensor] = []
        self._videos = _Videos()
        self._events: list[bytes] = []

    def deliver(self, plan: OutputPlan, content: Content, index: int) -> None:
        """See `AnswerSink`."""
        if plan.modality is None:
            self.transcripts.add(index, text(content))
        elif plan.modality is Modality.TEXT:
            self._events.append(self._chunks.text(text(content)))
        elif plan.modality is Modality.IMAGE:
            self._images.append(kept(content))
        elif plan.modality is Modality.VIDEO:
            self._videos.add(index, content)
        elif self._audio is not None:
            self._events.append(self._chunks.audio(self._audio.feed(tensor(content))))

    def progress(self, stage: StageName, done: int, total: int) -> None:
        """See `AnswerSink`."""
        self._events.append(self._chunks.progress(stage, done, total))

    async def flush(self) -> None:
        """Sends what came in this turn."""
        if self._images:
            await self._encode_images()
        if self._events:
            await self._send(self._taken(), last=False)

    async def _encode_images(self) -> None:
        images, self._images = self._images, []
        for image in images:
            made = await made_image(image, _IMAGES)
            self._events.append(self._chunks.media(made.format.media_type, made.data))

    def _taken(self) -> bytes:
        if not self.started:
            self.started = True
            self._events.insert(0, self._chunks.role())
        data = b"".join(self._events)
        self._events.clear()
        return data

    async def finish(
        self,
        *,
        finish_reason: FinishReason,
        usage: AnswerUsage | None,
        report: RequestReport,
    ) -> None:
        """Sends what is left and the events that end the stream.

        Args:
            finish_reason: Why generation ended.
            usage: For a client that asked for it.
            report: The extension object.

        Raises:
            MissingOutput: Audio was asked for and not a sample came.
            EngineFailed: What came is not what the plan says.
        """
        if self._audio is not None:
            finish = self._audio.finish
            rest = finish() if self._streams else await asyncio.to_thread(finish)
            self._events.append(self._chunks.audio(rest))
        for video in await self._videos.encoded():
            self._events.append(self._chunks.media(VIDEO_TYPE, video))
        if usage is None:
            self._events.append(self._chunks.finish(finish_reason, report))
        else:
            self._events.append(self._chunks.finish(finish_reason))
            self._events.append(self._chunks.usage(usage, report))
        self._events.append(DONE)
        await self._send(self._taken(), last=True)

    async def fail(self, error: OmnistageError) -> None:
        """Sends the event that says how a stream that had started failed."""
        self._events.clear()
        await self._send(error_event(error), last=True)
