"""Asks a running pipeline one question over its public HTTP API, as any client would.

It is how the demo, and whoever wants to know that a pipeline works, gets an answer; it uses nothing
of the platform but the address. The standard library's HTTP client is enough for one request.
"""

import base64
import http.client
import json
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from omnistage_common.errors import (
    InvalidRequest,
    MissingOutput,
    OmnistageError,
    ServerError,
    StageUnavailable,
    error_from_code,
    truncated,
)
from omnistage_common.ids import ModelName

__all__ = ["Question", "Reply", "StageTime", "ask", "question_from"]

_TIMEOUT: Final = 300.0
"""Seconds without a byte; the pipeline's own deadline is shorter."""
_VOICE: Final = "alloy"
"""OpenAI wants a voice to be named; engines with one voice take this name for it."""


class Question(Struct, frozen=True, kw_only=True):
    """What to ask: words, or a recording of them."""

    text: str = ""
    recording: bytes = b""
    """A WAV file; empty when the question is text."""


class StageTime(Struct, frozen=True, kw_only=True):
    """What the request took on one stage, in milliseconds."""

    name: str
    replica: str
    queue_ms: float
    run_ms: float
    first_output_ms: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0


class Reply(Struct, frozen=True, kw_only=True):
    """What came back."""

    transcripts: tuple[str, ...]
    """What was recognised in the recording."""
    text: str
    audio: bytes
    """A WAV file; empty when no audio was asked for."""
    stages: tuple[StageTime, ...]
    total_ms: float
    """As the gateway counts."""
    elapsed_ms: float
    """As the client counts."""


class _Audio(Struct, frozen=True):
    data: bytes


class _Message(Struct, frozen=True):
    content: str | None = None
    audio: _Audio | None = None


class _Choice(Struct, frozen=True):
    message: _Message


class _Report(Struct, frozen=True):
    transcripts: tuple[str, ...] = ()
    stages: tuple[StageTime, ...] = ()
    total_ms: float = 0.0


class _Body(Struct, frozen=True):
    choices: tuple[_Choice, ...]
    omnistage: _Report


class _Failure(Struct, frozen=True):
    message: str
    code: str | None = None


class _FailureBody(Struct, frozen=True):
    error: _Failure


def question_from(given: str) -> Question:
    """The question that an argument stands for: a WAV file where it names one, otherwise text.

    Raises:
        InvalidRequest: The file cannot be read, or there is no question.
    """
    if not given.strip():
        raise InvalidRequest("the question is empty", field="--question")
    if not given.lower().endswith(".wav"):
        return Question(text=given)
    try:
        return Question(recording=Path(given).read_bytes())
    except OSError as error:
        raise InvalidRequest(
            f"cannot read the question {given}: {error.strerror}", field="--question"
        ) from error


def ask(url: str, model: ModelName, question: Question, *, spoken: bool) -> Reply:
    """Asks, in such a way that the same question has the same answer, and waits for all of it.

    Blocks.

    Args:
        url: Where the gateway listens, without a path.
        model: A served name of the pipeline.
        question: What to ask.
        spoken: Whether the answer is wanted as audio, too.

    Raises:
        StageUnavailable: The gateway does not answer.
        MissingOutput: There is no audio in an answer that owes it.
        ServerError: The answer is not what the API promises.
        OmnistageError: What the pipeline answered instead.
    """
    body = json.dumps(_request(model, question, spoken=spoken)).encode()
    start = time.perf_counter()
    status, answer = _post(url, body)
    elapsed_ms = (time.perf_counter() - start) * 1e3
    if status != http.client.OK:
        raise _refusal(status, answer)
    return _reply(answer, elapsed_ms, spoken=spoken)


def _request(model: ModelName, question: Question, *, spoken: bool) -> dict[str, Any]:
    content: str | list[dict[str, Any]] = question.text
    if question.recording:
        data = base64.b64encode(question.recording).decode("ascii")
        content = [{"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}]
    request: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "modalities": ["text"],
        "temperature": 0,
    }
    if spoken:
        request |= {
            "modalities": ["text", "audio"],
            "audio": {"voice": _VOICE, "format": "wav"},
        }
    return request


def _post(url: str, body: bytes) -> tuple[int, bytes]:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(
        address.hostname or "", address.port or 80, timeout=_TIMEOUT
    )
    try:
        connection.request(
            "POST", "/v1/chat/completions", body, {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise StageUnavailable(f"the gateway at {url} does not answer: {error}") from error
    finally:
        connection.close()


def _refusal(status: int, answer: bytes) -> OmnistageError:
    try:
        failure = msgspec.json.decode(answer, type=_FailureBody).error
    except msgspec.DecodeError:
        text = truncated(answer.decode("utf-8", errors="replace"))
        return ServerError(f"the gateway answered with status {status}: {text}")
    return error_from_code(failure.code or "", failure.message)


def _reply(answer: bytes, elapsed_ms: float, *, spoken: bool) -> Reply:
    try:
        body = msgspec.json.decode(answer, type=_Body)
    except msgspec.DecodeError as error:
        raise ServerError(f"the answer is not a chat completion: {error}") from error
    if not body.choices:
        raise MissingOutput("the answer has no choices")
    message = body.choices[0].message
    audio = message.audio.data if message.audio is not None else b""
    if spoken and not audio:
        raise MissingOutput("the answer has no audio, which was asked for")
    return Reply(
        transcripts=body.omnistage.transcripts,
        text=message.content or "",
        audio=audio,
        stages=body.omnistage.stages,
        total_ms=body.omnistage.total_ms,
        elapsed_ms=elapsed_ms,
    )
