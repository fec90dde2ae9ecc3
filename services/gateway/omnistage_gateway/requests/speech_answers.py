"""Answers that consist of speech: a file, the body of one as it is made, or events."""

import asyncio

from omnistage_common.errors import OmnistageError
from omnistage_common.ids import StageName
from omnistage_common.payloads import Content, Tensor
from omnistage_common.pipeline.plan import Modality, OutputPlan
from omnistage_gateway.media.audio import AudioStreamEncoder, encode_audio
from omnistage_gateway.media.formats import AudioFormat
from omnistage_gateway.openai.answers import AnswerUsage, RequestReport
from omnistage_gateway.openai.events import error_event
from omnistage_gateway.openai.speech_events import speech_delta, speech_done
from omnistage_gateway.requests.answering import Send, Waiting, kept, tensor

__all__ = ["EventSpeech", "StreamedSpeech", "WholeSpeech"]


class WholeSpeech(Waiting):
    """Keeps everything until the end; one file."""

    def __init__(self, audio_format: AudioFormat) -> None:
        self._format = audio_format
        self._pieces: list[Tensor] = []

    def deliver(self, plan: OutputPlan, content: Content, index: int) -> None:  # noqa: ARG002
        """See `AnswerSink`."""
        if plan.modality is Modality.AUDIO:
            self._pieces.append(kept(content))

    async def body(self) -> bytes:
        """The file.

        Raises:
            MissingOutput: Not a sample came.
            EngineFailed: What came is no audio.
        """
        return await asyncio.to_thread(encode_audio, self._pieces, self._format)


class _Sent:
    """Sound on its way while it is made."""

    def __init__(self, send: Send, audio_format: AudioFormat) -> None:
        self.started = False
        """Whether anything was sent."""
        self._send = send
        self._format = audio_format
        self._encoder = AudioStreamEncoder(audio_format)
        self._ready: list[bytes] = []

    def deliver(self, plan: OutputPlan, content: Content, index: int) -> None:  # noqa: ARG002
        """See `AnswerSink`."""
        if plan.modality is Modality.AUDIO:
            self._ready.append(self._encoder.feed(tensor(content)))

    def progress(self, stage: StageName, done: int, total: int) -> None:
        """See `AnswerSink`."""

    async def flush(self) -> None:
        """Sends what came in this turn."""
        sound = self._taken()
        if sound:
            self.started = True
            await self._send(self._piece(sound), last=False)

    def _taken(self) -> bytes:
        sound = b"".join(self._ready)
        self._ready.clear()
        return sound

    def _piece(self, sound: bytes) -> bytes:
        """Sound as it goes to the client."""
        return sound

    async def _rest(self) -> bytes:
        """What is left of the sound at its end.

        Raises:
            MissingOutput: Not a sample came.
        """
        finish = self._encoder.finish
        rest = finish() if self._format.streams else await asyncio.to_thread(finish)
        return self._taken() + rest


class StreamedSpeech(_Sent):
    """The body of a file, sent as it is made."""

    async def finish(self) -> None:
        """Sends what is left.

        Raises:
            MissingOutput: Not a sample came.
        """
        rest = await self._rest()
        self.started = True
        await self._send(rest, last=True)

    async def fail(self, error: OmnistageError) -> None:
        """Leaves the body unfinished: there is no other way to say within it that it failed."""


class EventSpeech(_Sent):
    """Server-sent events."""

    def _piece(self, sound: bytes) -> bytes:
        return speech_delta(sound)

    async def finish(self, *, usage: AnswerUsage, report: RequestReport) -> None:
        """Sends what is left and the event that ends the stream.

        Raises:
            MissingOutput: Not a sample came.
        """
        rest = await self._rest()
        self.started = True
        await self._send(speech_delta(rest) + speech_done(usage, report), last=True)

    async def fail(self, error: OmnistageError) -> None:
        """Sends the event that says how a stream that had started failed."""
        await self._send(error_event(error), last=True)
