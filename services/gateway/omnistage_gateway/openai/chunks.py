"""The events of a streamed chat completion, as bytes ready to send.

A stream of many short deltas is mostly the same few hundred bytes again and again, so an encoder per
request lays out the constant parts once and puts each delta between them. The order of events is
role, any number of text and audio deltas, finish, usage when asked for, `DONE`; an error event takes
the place of all that is left. The encoder does not check the order, it is told what happened.
"""

from typing import Final

import msgspec

from omnistage_common.errors import OmnistageError
from omnistage_common.ids import ModelName, RequestId
from omnistage_common.links.frames import FinishReason
from omnistage_gateway.openai.answers import (
    AnswerUsage,
    RequestReport,
    audio_id,
    completion_id,
    finish_word,
)
from omnistage_gateway.openai.errors import error_body

__all__ = ["DONE", "ChunkEncoder", "error_event"]

DONE: Final = b"data: [DONE]\n\n"
"""The last event of a stream that ended well."""

_ALIGNMENT: Final = 6
"""Audio deltas hold a multiple of this many bytes, but for the last: whole 16-bit samples (2), and
base64 without padding (3), so that joining the deltas' base64 is as right as joining their bytes."""

_encode: Final = msgspec.json.Encoder().encode


def error_event(error: OmnistageError) -> bytes:
    """The event that ends a stream that failed; the official client raises it."""
    return b"data: " + _one_line(error_body(error)) + b"\n\n"


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
        self._head = b"data: " + _one_line(_encode(head))[:-1]
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
            text = _one_line(text)
        if self._audio:
            return self._content + text + b',"audio":{"transcript":' + text + b"}}" + _OPEN_END
        return self._content + text + b"}" + _OPEN_END

    def audio(self, piece: bytes) -> bytes:
        """A piece of the encoded audio; empty when it is too short to be sent by itself."""
        data = self._rest + piece if self._rest else piece
        rest = len(data) % _ALIGNMENT
        self._rest = data[len(data) - rest :] if rest else b""
        return self._audio_delta(data[:-rest] if rest else data)

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
        extension = b"" if report is None else b',"omnistage":' + _one_line(_encode(report))
        return last_audio + self._delta + end + extension + b"}\n\n"

    def usage(self, usage: AnswerUsage, report: RequestReport) -> bytes:
        """The event after `finish` for a client that asked for usage."""
        tail = _one_line(_encode({"choices": (), "usage": usage, "omnistage": report}))
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


_OPEN_END: Final = b',"logprobs":null,"finish_reason":null}]}\n\n'


def _one_line(text: bytes) -> bytes:
    """JSON without the characters that some clients take for the end of a line.

    Several HTTP libraries split event streams at every line boundary of Unicode, not only at the
    two that server-sent events have.
    """
    if text.isascii():
        return text
    return (
        text.replace(b"\xc2\x85", b"\\u0085")
        .replace(b"\xe2\x80\xa8", b"\\u2028")
        .replace(b"\xe2\x80\xa9", b"\\u2029")
    )
