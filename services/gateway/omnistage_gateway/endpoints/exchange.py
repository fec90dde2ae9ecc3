"""A request and its answer, from the head to the last byte: the life that every endpoint has in common.

Admission, deadline, the client's going away, and one place where whatever went wrong becomes a status
or an event. What an endpoint adds is a function of the exchange and the body (`Answering`), and names
for its fields. Whatever the end is, no tensor of the request is left.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog
from starlette.types import Receive, Scope, Send

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import (
    BodyTooLarge,
    InvalidRequest,
    OmnistageError,
    RequestCancelled,
    ServerError,
)
from omnistage_common.ids import ModelName, OutputName, RequestId, new_request_id
from omnistage_common.payloads import Output, Parameters
from omnistage_common.tensors import TensorPlane
from omnistage_gateway.admission import Admission
from omnistage_gateway.endpoints.http import (
    CLOSE,
    declared_length,
    header,
    read_body,
    respond,
    start,
)
from omnistage_gateway.endpoints.staying import Stay
from omnistage_gateway.media.images import MAX_PIXELS, RGB
from omnistage_gateway.metrics import GatewayMetrics
from omnistage_gateway.openai.answers import RequestReport
from omnistage_gateway.openai.errors import error_response
from omnistage_gateway.pipelines.catalog import Catalog
from omnistage_gateway.pipelines.pipeline import Pipeline
from omnistage_gateway.pipelines.routing import Route
from omnistage_gateway.requests.sequencing import Sequence, StagedRequest
from omnistage_gateway.tensor_planes import TensorPlanes

__all__ = ["Answering", "Endpoint", "Exchange", "Services", "StreamingAnswer"]

_log = structlog.get_logger()

LAST_WORD: Final = 1.0
"""Seconds that a client has to take the event of its failure, which it may have stopped reading for."""
ID_LENGTH: Final = 128
"""Characters of a client's own request id that are taken over."""
DECODERS: Final = 4
"""Requests that decode and publish their media at once, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Services:
    """What all exchanges of a gateway share."""

    catalog: Catalog
    admission: Admission
    planes: TensorPlanes
    metrics: GatewayMetrics
    plane: TensorPlane = field(init=False)
    """Where the media of requests are published."""
    decoders: asyncio.Semaphore = field(init=False)
    """Places for requests that decode and publish their media. The images of all of them fit into
    the slab, so that no two wait for each other's room."""

    def __post_init__(self) -> None:
        """Counts the places."""
        object.__setattr__(self, "plane", self.planes.publishing)
        fitting = self.plane.statistics().slab_bytes // (MAX_PIXELS * RGB)
        places = asyncio.Semaphore(min(max(1, fitting), DECODERS))
        object.__setattr__(self, "decoders", places)


class StreamingAnswer(Protocol):
    """An answer that may have begun when something fails."""

    started: bool
    """Whether anything was sent."""

    async def fail(self, error: OmnistageError) -> None:
        """Ends what had begun."""


class Exchange:
    """One request and its connection; the owner of its tensors, as ids are the clients' to choose."""

    __slots__ = (
        "_receive",
        "_send",
        "_stay",
        "answer",
        "deadline",
        "head",
        "id",
        "model",
        "pipeline",
        "scope",
        "services",
        "started_at",
    )

    def __init__(self, services: Services, scope: Scope, receive: Receive, send: Send) -> None:
        self.services = services
        self.scope = scope
        self._receive = receive
        self._send = send
        self.started_at = time.monotonic()
        self.id = _request_id(scope)
        self.head = (b"x-request-id", self.id.encode())
        self.model = ModelName("")
        self.pipeline: Pipeline | None = None
        """The revision that it has chosen, and stays on."""
        self.answer: StreamingAnswer | None = None
        """What a stream is made by, once there is one."""
        # Which pipeline's deadline counts is in the body, so the longest one holds until it is read.
        longest = services.catalog.longest_timeout
        self.deadline = Deadline(monotonic=self.started_at + longest)
        self._stay = Stay(receive, self.deadline)

    async def run(self, answering: "Answering") -> None:
        """Reads the body and answers, for as long as an answer is wanted.

        Raises:
            OmnistageError: What ended it.
        """
        async with self._stay:
            body = await read_body(self._receive, self.services.admission.max_body_bytes)
            await answering(self, body)

    def choose(self, model: ModelName) -> Pipeline:
        """The revision that serves a model, which the request is on from now on, to its end.

        Its deadline holds, and the client is watched.

        Raises:
            ModelNotFound: None does.
            StageUnavailable: None can yet.
            InvalidRequest: The client's own timeout is none.
        """
        pipeline = self.services.catalog.find(model)
        self.model = model
        self.pipeline = pipeline
        pipeline.enter()
        timeout = _timeout(self.scope, pipeline.plan.timeouts.request)
        self.deadline = Deadline(monotonic=self.started_at + timeout)
        self._stay.watch(until=self.deadline)
        return pipeline

    def sequence(
        self,
        pipeline: Pipeline,
        route: Route,
        *,
        inputs: Mapping[OutputName, tuple[Output, ...]],
        parameters: Parameters,
        stream: bool,
        first_frames: int | None = None,
    ) -> Sequence:
        """The request on its way over the stages.

        Args:
            pipeline: Which.
            route: The stages it visits.
            inputs: What it brings, by name; tensors are published already.
            parameters: How to compute.
            stream: Whether outputs are wanted as they are made.
            first_frames: Frames that the client wants in the first chunk of a stream.
        """
        request = StagedRequest(
            id=self.id,
            inputs=inputs,
            parameters=parameters,
            deadline=self.deadline,
            stream=stream,
            first_frames=first_frames,
        )
        plane = self.services.planes.reading(pipeline.plan.transport)
        return Sequence(request, route, pools=pipeline.pools, plane=plane)

    async def respond(self, content_type: tuple[bytes, bytes], body: bytes) -> None:
        """Sends a whole answer."""
        await respond(self._send, 200, (content_type, self.head), body)

    def stream(self, *headers: tuple[bytes, bytes]) -> "_Stream":
        """A streamed answer, whose head leaves with its first piece."""
        return _Stream(self._send, (*headers, self.head))

    def report(self, sequence: Sequence, transcripts: tuple[str, ...] = ()) -> RequestReport:
        """What the request took until now."""
        return RequestReport(
            request_id=self.id,
            transcripts=transcripts,
            stages=sequence.reports(),
            total_ms=round((time.monotonic() - self.started_at) * 1000, 3),
        )

    async def refuse(self, error: OmnistageError) -> None:
        """Tells the client what went wrong, if it is still there."""
        if isinstance(error, RequestCancelled):
            return
        if isinstance(error, ServerError):
            _log.warning(
                "request ended badly",
                request_id=self.id,
                model=self.model,
                reason=error.code,
                error=error.message,
            )
        if self.answer is not None and self.answer.started:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORD):
                    await self.answer.fail(error)
            return
        response = error_response(error)
        headers = (*response.headers, self.head)
        if isinstance(error, BodyTooLarge):
            headers += (CLOSE,)
        await start(self._send, response.status, headers)
        await self._send({"type": "http.response.body", "body": response.body})


class Answering(Protocol):
    """What an endpoint does."""

    async def __call__(self, exchange: Exchange, body: bytes) -> None:
        """Answers one request.

        Raises:
            OmnistageError: What is to be told the client.
        """


class Endpoint:
    """The ASGI application behind a path.

    Args:
        services: What all exchanges share.
        answering: What the endpoint does.
        fields: Name of a field as stages and routes know it -> its name at this endpoint.
    """

    def __init__(
        self,
        services: Services,
        answering: Answering,
        *,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        self._services = services
        self._answering = answering
        self._fields = fields or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        exchange = Exchange(self._services, scope, receive, send)
        outcome = "done"
        try:
            with self._services.admission.enter(declared_length(scope)):
                await exchange.run(self._answering)
        except OmnistageError as error:
            outcome = error.code
            error.field = self._fields.get(error.field, error.field)
            await exchange.refuse(error)
        except asyncio.CancelledError:
            outcome = RequestCancelled.code
            raise
        except Exception:  # noqa: BLE001 - the boundary behind which a bug costs one request
            outcome = ServerError.code
            _log.exception("request failed", request_id=exchange.id)
            await exchange.refuse(ServerError("the gateway failed; see its log"))
        finally:
            self._services.plane.release_owner(exchange)
            pipeline = exchange.pipeline
            if pipeline is not None:
                pipeline.leave()
            self._services.metrics.ended(
                pipeline.label if pipeline is not None else "",
                exchange.model,
                outcome,
                time.monotonic() - exchange.started_at,
            )


class _Stream:
    """Sends the pieces of a body, the head before the first one."""

    __slots__ = ("_headers", "_open", "_send")

    def __init__(self, send: Send, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        self._send = send
        self._headers = headers
        self._open = False

    async def __call__(self, data: bytes, *, last: bool) -> None:
        """Sends a piece."""
        if not self._open:
            self._open = True
            await start(self._send, 200, self._headers)
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})


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
