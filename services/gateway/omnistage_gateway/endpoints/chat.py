"""`POST /v1/chat/completions`: from the request's head to its last byte.

Admission, parsing, route, deadline and answer, and one place where whatever went wrong becomes a
status or an event.

The client's going away is noticed by a task that waits for it; it and the deadline end the request
the same way, by one timer whose expiry cancels what runs.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, Self

import structlog
from starlette.types import Receive, Scope, Send

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    InvalidRequest,
    OmnistageError,
    RequestCancelled,
    ServerError,
)
from omnistage_common.ids import ModelName, OutputName, RequestId, new_request_id
from omnistage_common.payloads import Output, Payload, PayloadKind
from omnistage_common.tensors import TensorPlane
from omnistage_gateway.admission import Admission
from omnistage_gateway.endpoints.http import (
    CLOSE,
    EVENT_STREAM,
    JSON,
    declared_length,
    header,
    read_body,
    respond,
    start,
)
from omnistage_gateway.media.audio import decode_audio
from omnistage_gateway.metrics import GatewayMetrics
from omnistage_gateway.openai.answers import RequestReport
from omnistage_gateway.openai.chat_request import ChatRequest, parse_chat_request
from omnistage_gateway.openai.errors import error_response
from omnistage_gateway.pipelines.catalog import Catalog
from omnistage_gateway.requests.answering import StreamedAnswer, Transcripts, WholeAnswer
from omnistage_gateway.requests.sequencing import Sequence, StagedRequest

__all__ = ["ChatEndpoint"]

_log = structlog.get_logger()

CONVERSATION: Final = OutputName("conversation")
AUDIO: Final = OutputName("audio")
WATCH_AFTER: Final = 0.05
"""Seconds after which the client's connection is watched."""
LAST_WORD: Final = 1.0
"""Seconds that a client has to take the event of its failure, which it may have stopped reading for."""
ID_LENGTH: Final = 128
"""Characters of a client's own request id that are taken over."""


class _Exchange:
    """One request and its connection; the owner of its tensors, as ids are the clients' to choose."""

    __slots__ = ("answer", "head", "id", "model", "receive", "scope", "send", "started_at")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.started_at = time.monotonic()
        self.id = _request_id(scope)
        self.head = (b"x-request-id", self.id.encode())
        self.model = ModelName("")
        self.answer: StreamedAnswer | None = None


class ChatEndpoint:
    """The ASGI application behind the path."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        admission: Admission,
        plane: TensorPlane,
        metrics: GatewayMetrics,
    ) -> None:
        self._catalog = catalog
        self._admission = admission
        self._plane = plane
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        exchange = _Exchange(scope, receive, send)
        outcome = "done"
        try:
            with self._admission.enter(declared_length(scope)):
                await self._answer(exchange)
        except OmnistageError as error:
            outcome = error.code
            await self._refuse(exchange, error)
        except asyncio.CancelledError:
            outcome = RequestCancelled.code
            raise
        except Exception:  # noqa: BLE001 - the boundary behind which a bug costs one request
            outcome = ServerError.code
            _log.exception("request failed", request_id=exchange.id)
            await self._refuse(exchange, ServerError("the gateway failed; see its log"))
        finally:
            seconds = time.monotonic() - exchange.started_at
            self._metrics.ended(exchange.model, outcome, seconds)

    async def _answer(self, exchange: _Exchange) -> None:
        # Which pipeline's deadline counts is in the body, so the longest one holds until it is read.
        longest = Deadline(monotonic=exchange.started_at + self._catalog.longest_timeout)
        async with _Stay(exchange.receive, longest) as stay:
            body = await read_body(exchange.receive, self._admission.max_body_bytes)
            await self._compute(exchange, parse_chat_request(body), stay)

    async def _compute(self, exchange: _Exchange, chat: ChatRequest, stay: "_Stay") -> None:
        pipeline = self._catalog.find(chat.model)
        exchange.model = chat.model
        brings = frozenset((CONVERSATION, AUDIO) if chat.audio_inputs else (CONVERSATION,))
        route = pipeline.routes.find(brings, chat.modalities)
        timeout = _timeout(exchange.scope, pipeline.plan.timeouts.request)
        deadline = Deadline(monotonic=exchange.started_at + timeout)
        stay.watch(until=deadline)
        with self._owned_tensors(exchange):
            request = StagedRequest(
                id=exchange.id,
                inputs=await self._inputs(exchange, chat, deadline),
                parameters=chat.parameters,
                deadline=deadline,
                stream=chat.stream,
            )
            sequence = Sequence(request, route, pools=pipeline.pools, plane=self._plane)
            if chat.stream:
                await self._stream(exchange, chat, sequence)
            else:
                await self._whole(exchange, chat, sequence)

    @contextmanager
    def _owned_tensors(self, owner: _Exchange) -> Iterator[None]:
        try:
            yield
        finally:
            self._plane.release_owner(owner)

    async def _inputs(
        self, owner: _Exchange, chat: ChatRequest, deadline: Deadline
    ) -> Mapping[OutputName, tuple[Output, ...]]:
        conversation = Payload(kind=PayloadKind.CONVERSATION, content=chat.conversation)
        inputs: dict[OutputName, tuple[Output, ...]] = {
            CONVERSATION: (Output(name=CONVERSATION, payload=conversation),)
        }
        if not chat.audio_inputs:
            return inputs
        audio: list[Output] = []
        for index, encoded in enumerate(chat.audio_inputs):
            tensor = await asyncio.to_thread(decode_audio, encoded)
            content = await self._plane.publish(tensor, owner=owner, deadline=deadline)
            payload = Payload(kind=PayloadKind.WAVEFORM, content=content)
            audio.append(Output(name=AUDIO, index=index, payload=payload))
        inputs[AUDIO] = tuple(audio)
        return inputs

    async def _whole(self, exchange: _Exchange, chat: ChatRequest, sequence: Sequence) -> None:
        answer = WholeAnswer(chat.audio_format)
        await sequence.run(answer)
        body = await answer.body(
            model=chat.model,
            finish_reason=sequence.progress.finish_reason,
            usage=sequence.usage(),
            report=_report(exchange, sequence, answer.transcripts),
        )
        await respond(exchange.send, 200, (JSON, exchange.head), body)

    async def _stream(self, exchange: _Exchange, chat: ChatRequest, sequence: Sequence) -> None:
        opened = False

        async def send(data: bytes, *, last: bool) -> None:
            nonlocal opened
            if not opened:
                opened = True
                await start(exchange.send, 200, (*EVENT_STREAM, exchange.head))
            await exchange.send({"type": "http.response.body", "body": data, "more_body": not last})

        answer = exchange.answer = StreamedAnswer(
            send, request_id=exchange.id, model=chat.model, audio_format=chat.audio_format
        )
        await sequence.run(answer)
        await answer.finish(
            finish_reason=sequence.progress.finish_reason,
            usage=sequence.usage() if chat.include_usage else None,
            report=_report(exchange, sequence, answer.transcripts),
        )

    async def _refuse(self, exchange: _Exchange, error: OmnistageError) -> None:
        if isinstance(error, RequestCancelled):
            return
        if isinstance(error, ServerError):
            _log.warning(
                "request ended badly",
                request_id=exchange.id,
                model=exchange.model,
                reason=error.code,
                error=error.message,
            )
        if exchange.answer is not None and exchange.answer.started:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORD):
                    await exchange.answer.fail(error)
            return
        response = error_response(error)
        headers = (*response.headers, exchange.head)
        if isinstance(error, BodyTooLarge):
            headers += (CLOSE,)
        await start(exchange.send, response.status, headers)
        await exchange.send({"type": "http.response.body", "body": response.body})


class _Stay:
    """The time for which an answer is wanted: until the deadline, or until the client goes away.

    The client is watched once its body has been read, as both come by the same way, and only from
    `WATCH_AFTER` on: a request that is over by then has nothing to gain from a watcher, which would
    cost it a task.

    Raises:
        DeadlineExceeded: The deadline passed.
        RequestCancelled: The client went away.
    """

    def __init__(self, receive: Receive, deadline: Deadline) -> None:
        self._receive = receive
        self._deadline = deadline
        self._timer = asyncio.timeout_at(deadline.monotonic)
        self._start: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._gone = False

    async def __aenter__(self) -> Self:
        await self._timer.__aenter__()
        return self

    def watch(self, *, until: Deadline) -> None:
        """Watches the client from now on, until another deadline than was thought."""
        if until != self._deadline:
            self._timer.reschedule(until.monotonic)
        loop = asyncio.get_running_loop()
        self._start = loop.call_later(WATCH_AFTER, self._start_watching)

    def _start_watching(self) -> None:
        self._watcher = asyncio.create_task(self._watch(), name="disconnect watch")

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._timer.reschedule(asyncio.get_running_loop().time())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._start is not None:
            self._start.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        try:
            await self._timer.__aexit__(kind, error, traceback)
        except TimeoutError:
            if self._gone:
                raise RequestCancelled("the client went away") from None
            raise DeadlineExceeded(
                "the request's deadline passed before its answer was complete"
            ) from None


def _request_id(scope: Scope) -> RequestId:
    """The client's own id when it sent one that is safe to repeat, a fresh one otherwise."""
    given = header(scope, b"x-request-id")
    if given and len(given) <= ID_LENGTH and given.isascii() and given.decode().isprintable():
        return RequestId(given.decode())
    return new_request_id()


def _timeout(scope: Scope, limit: float) -> float:
    given = header(scope, b"x-request-timeout")
    if given is None:
        return limit
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= limit:
        raise InvalidRequest(
            f"X-Request-Timeout must be a number of seconds, over 0 and at most {limit:g}",
            field="X-Request-Timeout",
        )
    return seconds


def _report(exchange: _Exchange, sequence: Sequence, transcripts: Transcripts) -> RequestReport:
    return RequestReport(
        request_id=exchange.id,
        transcripts=transcripts.all(),
        stages=sequence.reports(),
        total_ms=round((time.monotonic() - exchange.started_at) * 1000, 3),
    )
