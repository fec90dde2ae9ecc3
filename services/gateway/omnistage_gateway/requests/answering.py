"""Composes the outputs of the stages into one answer, whole or streamed.

An answer takes pieces in the order they come and never looks at which stage made them: the plan says
which modality a piece is. Nothing is sent before the first piece, so that a request that fails early
gets a status of its own; after it, a failure is an event of the stream.
"""

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol

from omnistage_common.errors import EngineFailed, OmnistageError
from omnistage_common.ids import ModelName, RequestId
from omnistage_common.links.frames import FinishReason
from omnistage_common.payloads import Content, Tensor
from omnistage_common.pipeline.plan import Modality, OutputPlan
from omnistage_gateway.media.audio import AudioStreamEncoder, encode_audio
from omnistage_gateway.media.formats import AudioFormat
from omnistage_gateway.openai.answers import Answer, AnswerUsage, RequestReport, chat_completion
from omnistage_gateway.openai.chunks import DONE, ChunkEncoder, error_event

__all__ = ["AnswerSink", "StreamedAnswer", "Transcripts", "WholeAnswer"]


class Send(Protocol):
    """Sends bytes to the client; waits while its connection is full."""

    def __call__(self, data: bytes, *, last: bool) -> Awaitable[None]:
        """Sends a piece of the stream, or the last one."""


class AnswerSink(Protocol):
    """Where the outputs of a request go."""

    def deliver(self, plan: OutputPlan, content: Content, index: int) -> None:
        """Takes one piece of one output."""

    async def flush(self) -> None:
        """All that came in one turn has been delivered."""


class Transcripts:
    """What was recognised in the client's own input, item by item."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def add(self, index: int, piece: str) -> None:
        """Takes a piece of one item's text."""
        self._texts[index] = self._texts.get(index, "") + piece

    def all(self) -> tuple[str, ...]:
        """The texts in order."""
        return tuple(self._texts[index] for index in sorted(self._texts))


class WholeAnswer:
    """Keeps everything until the end; one JSON body."""

    def __init__(self, audio_format: AudioFormat | None) -> None:
        self.transcripts = Transcripts()
        self._format = audio_format
        self._text: list[str] = []
        self._audio: list[Tensor] = []

    def deliver(self, plan: OutputPlan, content: Content, index: int) -> None:
        """See `AnswerSink`."""
        if plan.modality is None:
            self.transcripts.add(index, _text(content))
        elif plan.modality is Modality.TEXT:
            self._text.append(_text(content))
        else:
            tensor = _tensor(content)
            self._audio.append(Tensor(header=tensor.header, data=bytes(tensor.data)))

    async def flush(self) -> None:
        """Nothing leaves before the end."""

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
        """
        return chat_completion(
            Answer(
                created=int(time.time()),
                model=model,
                text="".join(self._text),
                audio=await self._encoded(),
                finish_reason=finish_reason,
                usage=usage,
                report=report,
            )
        )

    async def _encoded(self) -> bytes | None:
        if self._format is None:
            return None
        if self._format.streams:
            return encode_audio(self._audio, self._format)
        return await asyncio.to_thread(encode_audio, self._audio, self._format)


class StreamedAnswer:
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
        self._events: list[bytes] = []

    def deliver(self, plan: OutputPlan, content: Content, index: int) -> None:
        """See `AnswerSink`."""
        if plan.modality is None:
            self.transcripts.add(index, _text(content))
        elif plan.modality is Modality.TEXT:
            self._events.append(self._chunks.text(_text(content)))
        elif self._audio is not None:
            self._events.append(self._chunks.audio(self._audio.feed(_tensor(content))))

    async def flush(self) -> None:
        """Sends what came in this turn."""
        if self._events:
            await self._send(self._taken(), last=False)

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
        """
        if self._audio is not None:
            finish = self._audio.finish
            rest = finish() if self._streams else await asyncio.to_thread(finish)
            self._events.append(self._chunks.audio(rest))
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


def _text(content: Content) -> str:
    if not isinstance(content, str):
        raise EngineFailed(f"a stage made {type(content).__name__} where the plan says text")
    return content


def _tensor(content: Content) -> Tensor:
    if not isinstance(content, Tensor):
        raise EngineFailed(f"a stage made {type(content).__name__} where the plan says a tensor")
    return content
