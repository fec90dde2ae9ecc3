"""A stage replica over real gRPC that does what a test says and shows what it was sent.

Only the link is there. Messages go out as bytes, so that a test can also say what no replica should.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import grpc.aio

from omnistage_common.channels import SERVER_OPTIONS
from omnistage_common.ids import HostId, Incarnation
from omnistage_common.links import wire
from omnistage_common.links.frames import FromOpener, FromReplica, Open, Phase, Status
from omnistage_protos.stage.v1 import stage_pb2

__all__ = ["FakeReplica", "fake_replica", "status"]

_ENOUGH_S: Final = 20.0
F = TypeVar("F", bound=FromOpener)


def status(phase: Phase) -> Status:
    """What a replica says of itself."""
    return Status(
        phase=phase, message="", incarnation=Incarnation("fake"), host=HostId("somewhere")
    )


class FakeReplica:
    """See the module.

    Args:
        greeting: What it says first on every link.
    """

    def __init__(self, greeting: Iterable[FromReplica | bytes] = (status(Phase.READY),)) -> None:
        self.greeting = tuple(greeting)
        self.links: list[float] = []
        """When each link was opened."""
        self.messages: list[list[FromOpener]] = []
        """What came, message by message, over all links."""
        self.port = 0
        self._frames: asyncio.Queue[FromOpener] = asyncio.Queue()
        self._orders: asyncio.Queue[bytes | grpc.StatusCode] = asyncio.Queue()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listens, on the same port as before if it did."""
        server = grpc.aio.server(options=SERVER_OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(
            self._link,
            request_deserializer=stage_pb2.LinkRequest.FromString,
            response_serializer=bytes,
        )
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "omnistage.stage.v1.StageService", {"Link": handler}
                ),
            )
        )
        self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Is gone, and every link with it."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def _link(
        self,
        requests: AsyncIterator[stage_pb2.LinkRequest],
        context: "grpc.aio.ServicerContext[stage_pb2.LinkRequest, bytes]",
    ) -> None:
        self.links.append(time.monotonic())
        self._orders = asyncio.Queue()
        self.say(*self.greeting)
        reader = asyncio.create_task(self._read(requests))
        try:
            while isinstance(order := await self._orders.get(), bytes):
                await context.write(order)
            if order is not grpc.StatusCode.OK:
                await context.abort(order, "as the test says")
        finally:
            reader.cancel()

    async def _read(self, requests: AsyncIterator[stage_pb2.LinkRequest]) -> None:
        async for message in requests:
            frames = wire.decode_from_opener(message)
            self.messages.append(frames)
            for frame in frames:
                self._frames.put_nowait(frame)

    def say(self, *frames: FromReplica | bytes) -> None:
        """Sends frames in a message each; bytes as they are."""
        for frame in frames:
            data = frame
            if not isinstance(data, bytes):
                data = wire.encode_from_replica([data]).SerializeToString()
            self._orders.put_nowait(data)

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK) -> None:
        """Ends the link, after what was said before."""
        self._orders.put_nowait(code)

    async def hears(self, kind: type[F]) -> F:
        """The next frame, which must be of that kind."""
        async with asyncio.timeout(_ENOUGH_S):
            frame = await self._frames.get()
        assert isinstance(frame, kind), frame
        return frame

    async def hears_opens(self, count: int) -> list[Open]:
        """The next frames, which must be that many requests."""
        return [await self.hears(Open) for _ in range(count)]


@asynccontextmanager
async def fake_replica(
    greeting: Iterable[FromReplica | bytes] = (status(Phase.READY),),
) -> AsyncIterator[FakeReplica]:
    """A replica that listens while the context lasts."""
    replica = FakeReplica(greeting)
    await replica.start()
    try:
        yield replica
    finally:
        await replica.stop()
