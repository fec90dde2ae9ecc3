"""The events of a streamed chat completion, as bytes ready to send.

A stream of many short deltas is mostly the same few hundred bytes again and again, so an encoder per
request lays out the constant parts once and puts each delta between them. The order of events is
role, any number of deltas and steps, finish, usage when asked for, `DONE`; an error event takes
the place of all that is left. The encoder does not check the order, it is told what happened.
"""

from typing import Final

import msgspec

from omnistage_common.ids import ModelName, RequestId, StageName
from omnistage_common.links.frames import FinishReason
from omnistage_gateway.openai.answers import (
    AnswerUsage,
    RequestReport,
    audio_id,
    completion_id,
    finish_word,
    media_part,
)
from omnistage_gateway.openai.events import one_line

__all__ = ["DONE", "ChunkEncoder"]

DONE: Final = b"data: [DONE]\n\n"
"""The last event of a stream that ended well."""

_ALIGNMENT: Final = 12
"""Audio deltas hold a multiple of this many bytes, but for the last: whole 16-bit samples of one
channel or two (4), and base64 without padding (3), so that joining the deltas' base64 is as right as
joining their bytes."""

_encode: Final = msgspec.json.Encoder().encode


class ChunkEncoder:
    """Encodes the events of one answer."""

    def __init__(
        self, request_id: RequestId, created: int, model: ModelName, *, audio: bool
    ) -> None:
        """Lays out the constant parts.

        Args:
            request_id: The request.
            created: Seconds since the Unix epoch.
            model: As the client named it.
            audio: Audio was asked for, so text is repeated as its transcript.
        """
        head = {
            "id": completion_id(request_id),
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }
        self._head = b"data: " + one_line(_encode(head))[:-1]
        self._delta = self._head + b',"choices":[{"index":0,"delta":'
        self._content = self._delta + b'{"content":'
        self._data = self._delta + b'{"audio":{"data":'
        self._audio = audio
        self._audio_id = audio_id(request_id)
        self._created = created
        self._named = False
        self._rest = b""

    def role(self) -> bytes:
        """The first event."""
        return self._delta + b'{"role":"assistant","content":"","refusal":null}' + _OPEN_END

    def text(self, delta: str) -> bytes:
        """A piece of the text; as the audio's transcript too when audio was asked for."""
        text = _encode(delta)
        if not delta.isascii():
            text = one_line(text)
        if self._audio:
            return self._content + text + b',"audio":{"transcript":' + text + b"}}" + _OPEN_END
        return self._content + text + b"}" + _OPEN_END

    def audio(self, piece: bytes) -> bytes:
        """A piece of the encoded audio; empty when it is too short to be sent by itself."""
        data = self._rest + piece if self._rest else piece
        rest = len(data) % _ALIGNMENT
        self._rest = data[len(data) - rest :] if rest else b""
        return self._audio_delta(data[:-rest] if rest else data)

    def media(self, media_type: str, data: bytes) -> bytes:
        """An image or a video, whole, as a part of the content."""
        return self._content + b"[" + _encode(media_part(media_type, data)) + b"]}" + _OPEN_END

    def progress(self, stage: StageName, done: int, total: int) -> bytes:
        """How far a stage is, as an extension of a chunk that adds nothing."""
        step = _encode({"progress": {"stage": stage, "done": done, "total": total}})
        return self._delta + b"{}" + _OPEN_CHOICE + b',"omnistage":' + step + b"}\n\n"

    def finish(self, reason: FinishReason, report: RequestReport | None = None) -> bytes:
        """What is left of the audio, and the event that ends the answer.

        Args:
            reason: Why it ended.
            report: The extension object, when no chunk of usage follows to carry it.
        """
        last_audio = self._audio_delta(self._rest)
        self._rest = b""
        if self._named:
            expiry = b'{"audio":{"expires_at":%d}}' % self._created
            last_audio += self._delta + expiry + _OPEN_END
        end = b'{},"logprobs":null,"finish_reason":"%b"}]' % finish_word(reason).encode()
        extension = b"" if report is None else b',"omnistage":' + one_line(_encode(report))
        return last_audio + self._delta + end + extension + b"}\n\n"

    def usage(self, usage: AnswerUsage, report: RequestReport) -> bytes:
        """The event after `finish` for a client that asked for usage."""
        tail = one_line(_encode({"choices": (), "usage": usage, "omnistage": report}))
        return self._head + b"," + tail[1:] + b"\n\n"

    def _audio_delta(self, data: bytes) -> bytes:
        if not data:
            return b""
        encoded = _encode(data)
        if self._named:
            return self._data + encoded + b"}}" + _OPEN_END
        self._named = True
        name = b',"id":' + _encode(self._audio_id)
        return self._data + encoded + name + b"}}" + _OPEN_END


_OPEN_CHOICE: Final = b',"logprobs":null,"finish_reason":null}]'
_OPEN_END: Final = _OPEN_CHOICE + b"}\n\n"
