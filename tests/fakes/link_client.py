"""The opener's end of a link, for tests: in memory to a `Link`, or over gRPC to a stage process.

It plays by the protocol's rules (`Opener` checks every frame that comes), keeps all frames, and can
be told to wait for one.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc.aio

from fakes.frames import open_frame, subscribe_frame
from omnistage_common.channels import CHANNEL_OPTIONS
from omnistage_common.ids import Incarnation, RequestId, RequestNumber, StreamToken
from omnistage_common.links import wire
from omnistage_common.links.frames import (
    Data,
    Delivery,
    End,
    Error,
    FromOpener,
    FromReplica,
    Open,
    Phase,
    Progress,
    Status,
    Subscribe,
)
from omnistage_common.links.protocol import Opener
from omnistage_common.links.replica_link import NO_STREAMS, Streams
from omnistage_common.payloads import Output, Parameters
from omnistage_protos.stage.v1 import stage_pb2, stage_pb2_grpc
from omnistage_stage.service.link import Link
from omnistage_stage.service.replica import Replica

__all__ = ["LinkClient", "grpc_link", "memory_link"]

_ENOUGH_S = 20.0


class LinkClient:
    """See the module.

    Args:
        write: Sends a message to the replica.
    """

    def __init__(self, write: Callable[[stage_pb2.LinkRequest], Awaitable[None]]) -> None:
        self._write = write
        self._writing = asyncio.Lock()
        self._waiting: set[asyncio.Future[None]] = set()
        self.opener = Opener()
        self.statuses: list[Status] = []
        self.first: FromReplica | None = None
        """The very first frame."""
        self.frames: dict[RequestNumber, list[Data | Progress | End | Error]] = {}
        self.over = False
        """The link has ended."""
        self.broken: BaseException | None = None
        """Why, when it did not end well."""

    def next_open(
        self,
        *inputs: Output,
        credit: int = 64,
        delivery: Delivery = Delivery.DELTAS,
        seconds: float = 30.0,
        parameters: Parameters | None = None,
        streams: Streams = NO_STREAMS,
    ) -> Open:
        """An Open with the next number, not sent yet."""
        number = self.opener.next_number()
        frame = open_frame(
            number,
            request_id=f"{id(self):x}-{number}",
            credit=credit,
            delivery=delivery,
            seconds=seconds,
            inputs=inputs,
            parameters=parameters or Parameters(),
            streams=streams,
        )
        self.opener.open(frame)
        self.frames[number] = []
        return frame

    def next_subscribe(
        self, token: StreamToken, incarnation: Incarnation, *, credit: int, seconds: float
    ) -> Subscribe:
        """A Subscribe with the next number, not sent yet."""
        frame = subscribe_frame(
            self.opener.next_number(), token, incarnation, credit=credit, seconds=seconds
        )
        self.opener.open(frame)
        self.frames[frame.request] = []
        return frame

    async def send(self, *frames: FromOpener | None) -> None:
        """Sends frames as one message, whatever they are."""
        await self.write(wire.encode_from_opener(f for f in frames if f is not None))

    async def write(self, message: stage_pb2.LinkRequest) -> None:
        """Sends a message, whatever is in it, after those before it."""
        async with self._writing:
            await self._write(message)

    async def open(
        self,
        *inputs: Output,
        credit: int = 64,
        delivery: Delivery = Delivery.DELTAS,
        seconds: float = 30.0,
        parameters: Parameters | None = None,
        streams: Streams = NO_STREAMS,
    ) -> RequestNumber:
        """Opens a request."""
        frame = self.next_open(
            *inputs,
            credit=credit,
            delivery=delivery,
            seconds=seconds,
            parameters=parameters,
            streams=streams,
        )
        await self.send(frame)
        return frame.request

    async def subscribe(
        self,
        token: StreamToken,
        incarnation: Incarnation,
        *,
        credit: int = 64,
        seconds: float = 30.0,
    ) -> RequestNumber:
        """Comes for an outlet."""
        frame = self.next_subscribe(token, incarnation, credit=credit, seconds=seconds)
        await self.send(frame)
        return frame.request

    def id_of(self, number: RequestNumber) -> RequestId:
        """The id of a request of this client."""
        return RequestId(f"{id(self):x}-{number}")

    async def cancel(self, number: RequestNumber) -> None:
        """Cancels a request."""
        await self.send(self.opener.cancel(number, "test"))

    async def release(self, number: RequestNumber) -> None:
        """Releases a held request."""
        await self.send(self.opener.release(number))

    async def credit(self, number: RequestNumber, frames: int) -> None:
        """Grants Data frames."""
        await self.send(self.opener.credit(number, frames))

    async def outcome(self, number: RequestNumber) -> End | Error:
        """The frame that ends a request, once it is there."""
        await self.until(lambda: bool(self.frames[number][-1:]) and self._ended(number))
        last = self.frames[number][-1]
        assert isinstance(last, End | Error)
        return last

    async def ended(self, number: RequestNumber) -> End:
        """The End of a request that ends well."""
        last = await self.outcome(number)
        assert isinstance(last, End), last
        return last

    async def failed(self, number: RequestNumber) -> Error:
        """The Error of a request that ends badly."""
        last = await self.outcome(number)
        assert isinstance(last, Error), last
        return last

    def data(self, number: RequestNumber) -> list[Data]:
        """The Data frames of a request so far."""
        return [frame for frame in self.frames[number] if isinstance(frame, Data)]

    def progress(self, number: RequestNumber) -> list[tuple[int, int]]:
        """What came of a request about how far it is."""
        frames = self.frames[number]
        return [(each.done, each.total) for each in frames if isinstance(each, Progress)]

    def outputs(self, number: RequestNumber) -> list[Output]:
        """What came of a request so far."""
        return [output for frame in self.data(number) for output in frame.outputs]

    def text(self, number: RequestNumber) -> str:
        """The text of a request so far."""
        contents = (output.payload.content for output in self.outputs(number))
        return "".join(content for content in contents if isinstance(content, str))

    async def phase(self, phase: Phase) -> None:
        """Waits until the replica says it is in a phase."""
        await self.until(lambda: any(status.phase is phase for status in self.statuses))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until what came makes the condition true.

        Raises:
            AssertionError: The link ended before.
        """
        async with asyncio.timeout(_ENOUGH_S):
            while not condition():
                assert not self.over, f"the link is over: {self.broken!r}"
                news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.add(news)
                await news

    async def until_over(self) -> BaseException | None:
        """Waits for the end of the link; why it ended, None when it ended well."""
        await self.until(lambda: self.over)
        return self.broken

    def receive(self, frames: list[FromReplica]) -> None:
        """Takes what the replica sent."""
        for frame in frames:
            self.first = self.first or frame
            if not self.opener.receive(frame):
                continue
            if isinstance(frame, Status):
                self.statuses.append(frame)
            else:
                self.frames[frame.request].append(frame)
        self._tell()

    def end(self, broken: BaseException | None = None) -> None:
        """Notes that the link ended."""
        self.over, self.broken = True, broken
        self._tell()

    def _ended(self, number: RequestNumber) -> bool:
        return isinstance(self.frames[number][-1], End | Error)

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for news in waiting:
            if not news.done():
                news.set_result(None)


@asynccontextmanager
async def memory_link(
    replica: Replica, *, link: Link | None = None
) -> AsyncIterator[tuple[LinkClient, "asyncio.Task[None]"]]:
    """A link within this process, and the task that serves it, which is ended with the context."""
    incoming: asyncio.Queue[stage_pb2.LinkRequest] = asyncio.Queue()
    client = LinkClient(incoming.put)

    async def send(frames: list[FromReplica]) -> None:
        client.receive(frames)

    async def arriving() -> AsyncIterator[list[FromOpener]]:
        while True:
            yield wire.decode_from_opener(await incoming.get())

    link = link or Link(replica, changed=lambda: None)
    serving = asyncio.create_task(link.run(arriving(), send), name="link")
    serving.add_done_callback(lambda task: client.end(_reason(task)))
    try:
        yield client, serving
    finally:
        serving.cancel()
        await asyncio.wait((serving,))


def _reason(task: "asyncio.Task[None]") -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


@asynccontextmanager
async def grpc_link(address: str) -> AsyncIterator[LinkClient]:
    """A link to a stage process, closed with the context."""
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        call = stage_pb2_grpc.StageServiceStub(channel).Link(wait_for_ready=True)
        client = LinkClient(call.write)
        reading = asyncio.create_task(_read(call, client), name="link client")
        try:
            yield client
        finally:
            call.cancel()
            await asyncio.wait((reading,))


async def _read(
    call: "grpc.aio.StreamStreamCall[stage_pb2.LinkRequest, stage_pb2.LinkResponse]",
    client: LinkClient,
) -> None:
    try:
        while isinstance(message := await call.read(), stage_pb2.LinkResponse):
            client.receive(wire.decode_from_replica(message))
    except (grpc.aio.AioRpcError, asyncio.CancelledError) as broken:
        client.end(broken)
    else:
        client.end()
