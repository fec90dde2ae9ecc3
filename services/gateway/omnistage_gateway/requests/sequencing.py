"""Runs one request over the stages of its route.

One task per request: it opens the stops that have what they wait for, waits for whatever any of its
replicas says, hands the client's outputs to the answer, and at the end, however it comes, closes
every stage call. Stops that stream to one another are introduced by a token and then talk without
the gateway. Frames arrive in an inbox without waking anybody twice per turn. The deadline and
the client's going away both end it from outside.
"""

import asyncio
from collections.abc import Mapping

from msgspec import Struct

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import Draining, StageUnavailable
from omnistage_common.ids import (
    OutputName,
    RequestId,
    RequestNumber,
    StageName,
    StreamToken,
    new_stream_token,
)
from omnistage_common.links.frames import Data, End, Error, Inlet, Outlet
from omnistage_common.links.frames import Progress as ProgressFrame
from omnistage_common.links.replica_link import CREDIT, ReplicaLink, Streams
from omnistage_common.payloads import Output, Parameters, TensorRef
from omnistage_common.pipeline.plan import OutputPlan
from omnistage_common.tensors import TensorPlane
from omnistage_gateway.openai.answers import AnswerUsage, StageReport
from omnistage_gateway.pipelines.routing import Route, RouteStage, Stream
from omnistage_gateway.replicas.pool import StagePool
from omnistage_gateway.requests.answering import AnswerSink
from omnistage_gateway.requests.chunking import first_frames
from omnistage_gateway.requests.progress import Progress

__all__ = ["Sequence", "StagedRequest"]


class StagedRequest(Struct, frozen=True, kw_only=True):
    """A request as the stages see it."""

    id: RequestId
    inputs: Mapping[OutputName, tuple[Output, ...]]
    """What the request brings, by name; tensors are published already."""
    parameters: Parameters
    deadline: Deadline
    stream: bool
    first_frames: int | None = None
    """Frames that the client wants in the first chunk of a stream; None to go by the load."""


_Frame = Data | ProgressFrame | End | Error


class _Call:
    """One stop of the request on one replica; turns frames into items of the inbox."""

    __slots__ = ("heard", "inbox", "link", "number", "stage", "unacknowledged")

    def __init__(self, stage: RouteStage, link: ReplicaLink, inbox: "_Inbox") -> None:
        self.stage = stage
        self.link = link
        self.inbox = inbox
        self.number = RequestNumber(0)
        self.unacknowledged = 0
        self.heard = False
        """Whether anything was made of it."""

    def received(self, frame: _Frame) -> None:
        """See `Listener`."""
        self.inbox.put(self, frame)

    def consumed(self) -> None:
        """One Data frame was dealt with; grants more when half of them are."""
        self.heard = True
        self.unacknowledged += 1
        if self.unacknowledged >= CREDIT // 2:
            self.link.grant(self.number, self.unacknowledged)
            self.unacknowledged = 0


class _Inbox:
    """Frames of all stops of one request, in the order they came; one task takes them."""

    __slots__ = ("_items", "_waiter")

    def __init__(self) -> None:
        self._items: list[tuple[_Call, _Frame]] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, call: _Call, frame: _Frame) -> None:
        self._items.append((call, frame))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[tuple[_Call, _Frame]]:
        if not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        items, self._items = self._items, []
        return items


class Sequence:
    """One request on its way through its route."""

    def __init__(
        self,
        request: StagedRequest,
        route: Route,
        *,
        pools: Mapping[StageName, StagePool],
        plane: TensorPlane,
    ) -> None:
        self._request = request
        self._route = route
        self._pools = pools
        self._plane = plane
        self._inbox = _Inbox()
        self._calls: dict[StageName, _Call] = {}
        self._tokens: dict[Stream, StreamToken] = {}
        self.progress = Progress(route)

    async def run(self, answer: AnswerSink) -> None:
        """Runs it to its end. To be cancelled when it is not wanted any more.

        Nothing is opened unless every stage of the route can serve: a request that would fail at its
        last stage is refused at once, while its sender can still be told with a status.

        Raises:
            OmnistageError: What ended it; every stage has been told.
        """
        reason = "failed"
        for stage in self._route.stages:
            self._pools[stage.name].check_ready()
        try:
            self._open_stops()
            while not self.progress.done:
                for call, frame in await self._inbox.take():
                    await self._handle(call, frame, answer)
                self._open_stops()
                await answer.flush()
            reason = "done"
        except asyncio.CancelledError:
            reason = "cancelled"
            raise
        finally:
            for call in self._calls.values():
                call.link.close(call.number, reason)

    def reports(self) -> tuple[StageReport, ...]:
        """What the request took on each stage that ended, in order."""
        return tuple(
            StageReport(
                name=name,
                replica=self._calls[name].link.endpoint.replica,
                queue_ms=usage.queue_us / 1000,
                run_ms=usage.run_us / 1000,
                first_output_ms=usage.first_output_us / 1000,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
            )
            for name, usage in self.progress.usages.items()
        )

    def usage(self) -> AnswerUsage:
        """Tokens of the whole request: text where it is written, codec frames where they are."""
        prompt = text = frames = 0
        counted = False
        for name, usage in self.progress.usages.items():
            stage = self._calls[name].stage
            if stage.writes_text:
                prompt += usage.input_tokens
                text += usage.output_tokens
            if stage.makes_frames:
                frames += usage.output_tokens
                counted = True
        return AnswerUsage.of(prompt, text, frames if counted else None)

    def _open_stops(self) -> None:
        # Opening a stop may make the next one openable: the one that fetches from it.
        while stages := self.progress.openable():
            for stage in stages:
                self._open(stage)

    def _open(self, stage: RouteStage) -> None:
        request = self._request
        link = self._pools[stage.name].choose()
        inputs = [item for name in stage.request_inputs for item in request.inputs[name]]
        inputs += self.progress.open(stage.name)
        call = self._calls[stage.name] = _Call(stage, link, self._inbox)
        call.number = link.open(
            call,
            request_id=request.id,
            deadline=request.deadline,
            delivery=stage.delivery(stream=request.stream),
            inputs=tuple(inputs),
            parameters=request.parameters,
            streams=Streams(
                inlets=tuple(self._inlet(stream) for stream in stage.streams.arriving),
                outlets=tuple(self._outlet(stream) for stream in stage.streams.leaving),
                withheld=stage.streams.withheld,
                credit_releases=not stage.edges_out,
            ),
        )

    def _outlet(self, stream: Stream) -> Outlet:
        """What a producer must know of a stream; names it anew."""
        token = self._tokens[stream] = new_stream_token()
        chunk = stream.chunk
        if chunk is None:
            return Outlet(token=token, outputs=stream.outputs)
        first = first_frames(
            chunk, load=self._pools[stream.consumer].load, wanted=self._request.first_frames
        )
        return Outlet(token=token, outputs=stream.outputs, first_frames=first, frames=chunk.frames)

    def _inlet(self, stream: Stream) -> Inlet:
        """What a consumer must know of a stream whose producer is open."""
        link = self._calls[stream.producer].link
        if link.incarnation is None:
            raise StageUnavailable(f"replica {link.endpoint.replica} was lost; try again")
        return Inlet(
            token=self._tokens[stream],
            address=link.endpoint.address,
            incarnation=link.incarnation,
            outputs=stream.outputs,
        )

    def _reopen(self, refused: _Call) -> None:
        """Opens a stop anew whose replica went out of service, with all that it streams with.

        Raises:
            Draining: Something of it has gone to the client already.
        """
        group = self.progress.streaming_with(refused.stage.name)
        calls = [self._calls[stage.name] for stage in group]
        if any(call.heard for call in calls):
            raise Draining(
                f"replica {refused.link.endpoint.replica} went out of service; try again"
            )
        for call in calls:
            call.link.close(call.number, "opened elsewhere")
        for stage in group:
            self._open(stage)

    async def _deliver(self, plan: OutputPlan, output: Output, answer: AnswerSink) -> None:
        """Hands the answer one piece, whose bytes it may read until it returns."""
        content = output.payload.content
        if not isinstance(content, TensorRef):
            answer.deliver(plan, content, output.index)
            return
        owner = object()
        try:
            tensor = await self._plane.fetch(content, owner=owner, deadline=self._request.deadline)
            answer.deliver(plan, tensor, output.index)
        finally:
            self._plane.release_owner(owner)

    async def _handle(self, call: _Call, frame: _Frame, answer: AnswerSink) -> None:
        if self._calls.get(call.stage.name) is not call:
            return
        if isinstance(frame, Data):
            for plan, output in self.progress.data(call.stage.name, frame.outputs):
                await self._deliver(plan, output, answer)
            call.consumed()
        elif isinstance(frame, End):
            for name in self.progress.end(call.stage.name, frame):
                self._calls[name].link.close(self._calls[name].number, "done")
        elif isinstance(frame, ProgressFrame):
            answer.progress(call.stage.name, frame.done, frame.total)
        elif isinstance(frame.error, Draining) and not call.heard:
            # It went out of service before it began; another replica can do it as well.
            self._reopen(call)
        else:
            raise frame.error
