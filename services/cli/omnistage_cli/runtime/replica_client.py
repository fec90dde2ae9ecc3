"""What the local runtime asks a stage replica: whether it serves, and what it is doing.

Whether it serves comes from the standard health service as a stream, so a change is known when it
happens and nothing is asked twice. Messages of the wire end in this file.
"""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Self

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2
from msgspec import Struct

from omnistage_common.channels import CHANNEL_OPTIONS
from omnistage_common.errors import StageUnavailable
from omnistage_protos.stage.v1 import stage_pb2, stage_pb2_grpc

__all__ = ["ReplicaClient", "ReplicaReport"]

_DESCRIBE_TIMEOUT: Final = 1.0
_BREAK_PAUSE: Final = 0.2
"""Seconds between the break of a health stream and the next; a process that ends breaks it, too."""

_OPTIONS: Final = tuple(
    {
        **dict(CHANNEL_OPTIONS),
        "grpc.enable_http_proxy": 0,
        "grpc.max_reconnect_backoff_ms": 250,
    }.items()
)


class ReplicaReport(Struct, frozen=True, kw_only=True):
    """What a replica is doing now."""

    running: int
    """Requests in the engine."""
    queued: int
    """Requests waiting for a place in it."""
    resident_bytes: int


class ReplicaClient:
    """A channel to one life of one replica."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._watch_health = self._channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        self._stage: stage_pb2_grpc.StageServiceAsyncStub = stage_pb2_grpc.StageServiceStub(
            self._channel
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._channel.close()

    async def serving(self) -> AsyncIterator[bool]:
        """Whether it serves: now, and whenever that changes; without end.

        A stream that breaks counts as not serving and is opened again.
        """
        request = health_pb2.HealthCheckRequest(service="")
        while True:
            try:
                async for response in self._watch_health(request, wait_for_ready=True):
                    yield response.status == health_pb2.HealthCheckResponse.SERVING
            except grpc.aio.AioRpcError:
                yield False
            await asyncio.sleep(_BREAK_PAUSE)

    async def describe(self) -> ReplicaReport:
        """What it is doing now.

        Raises:
            StageUnavailable: It does not answer.
        """
        try:
            answer = await self._stage.Describe(
                stage_pb2.DescribeRequest(), timeout=_DESCRIBE_TIMEOUT
            )
        except grpc.aio.AioRpcError as error:
            raise StageUnavailable(f"the replica does not answer: {error.details()}") from error
        return ReplicaReport(
            running=answer.occupancy.running,
            queued=answer.occupancy.queued,
            resident_bytes=answer.resident_bytes,
        )
