"""The replica's gRPC door, StageService: a thin loop around the domain."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Final

import grpc.aio
import structlog

from omnistage_common.errors import OmnistageError
from omnistage_common.links import wire
from omnistage_common.links.batching import messages_of
from omnistage_common.links.frames import FromOpener, FromReplica
from omnistage_common.processes import resident_bytes
from omnistage_common.tensors.door import TENSOR_SERVICE, open_door
from omnistage_common.tensors.wire import kind_to_pb
from omnistage_protos.stage.v1 import stage_pb2, stage_pb2_grpc
from omnistage_stage.service.draining import Drain
from omnistage_stage.service.link import Link
from omnistage_stage.service.replica import Replica

__all__ = ["SERVICE_NAMES", "StageServicer", "register"]

_log = structlog.get_logger()

SERVICE_NAMES: Final = (
    stage_pb2.DESCRIPTOR.services_by_name["StageService"].full_name,
    TENSOR_SERVICE,
)
"""Full names on the wire, for reflection."""


def register(server: grpc.aio.Server, replica: Replica, drain: Drain) -> None:
    """Adds the replica's doors to a server."""
    stage_pb2_grpc.add_StageServiceServicer_to_server(StageServicer(replica, drain=drain), server)
    open_door(server, replica.plane)


class StageServicer(stage_pb2_grpc.StageServiceServicer):
    """See the service's comments in `stage.proto`."""

    def __init__(self, replica: Replica, *, drain: Drain) -> None:
        self._replica = replica
        self._drain = drain

    async def Link(  # type: ignore[override]  # noqa: N802 - writes by the context
        self,
        request_iterator: AsyncIterator[stage_pb2.LinkRequest],
        context: "grpc.aio.ServicerContext[stage_pb2.LinkRequest, stage_pb2.LinkResponse]",
    ) -> None:
        """Carries the requests of one gateway worker."""
        link = Link(self._replica, changed=self._drain.changed)
        self._drain.joined(link)

        async def incoming() -> AsyncIterator[list[FromOpener]]:
            async for message in request_iterator:
                yield wire.decode_from_opener(message)

        async def send(frames: list[FromReplica]) -> None:
            for message in messages_of(frames, wire.encode_from_replica):
                await context.write(message)

        try:
            await link.run(incoming(), send)
        except OmnistageError as broken:
            _log.warning("link refused", error=broken.message)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, broken.message)
        finally:
            self._drain.left(link)

    async def Describe(  # noqa: N802
        self,
        request: stage_pb2.DescribeRequest,  # noqa: ARG002
        context: "grpc.aio.ServicerContext[stage_pb2.DescribeRequest, stage_pb2.DescribeResponse]",  # noqa: ARG002
    ) -> stage_pb2.DescribeResponse:
        """Says what this replica is and what it holds, counted from what is there."""
        replica = self._replica
        tensors = replica.plane.statistics()
        return stage_pb2.DescribeResponse(
            stage=replica.plan.name,
            engine=replica.plan.engine,
            revision=replica.plan.revision,
            incarnation=replica.incarnation,
            phase=wire.phase_to_pb(replica.lifecycle.phase),
            message=replica.lifecycle.message,
            occupancy=stage_pb2.Occupancy(
                running=replica.admission.running,
                queued=replica.admission.queued,
                leases=tensors.leases,
                slab_bytes=tensors.used_bytes,
                open_requests=self._drain.open_requests,
                tasks=len(asyncio.all_tasks()),
                device_leases=tensors.device_leases,
                device_bytes=tensors.device_used_bytes,
            ),
            host=replica.host,
            resident_bytes=resident_bytes(),
            pid=os.getpid(),
            tensor_peers=[
                stage_pb2.TensorPeer(
                    incarnation=peer.incarnation,
                    address=peer.address,
                    transport=kind_to_pb(peer.kind),
                    tensors=peer.tensors,
                    bytes=peer.bytes,
                    fallback=peer.fallback,
                    on_device=peer.on_device,
                )
                for peer in replica.plane.peers()
            ],
        )

    async def Drain(  # noqa: N802
        self,
        request: stage_pb2.DrainRequest,
        context: "grpc.aio.ServicerContext[stage_pb2.DrainRequest, stage_pb2.DrainResponse]",  # noqa: ARG002
    ) -> stage_pb2.DrainResponse:
        """Takes the replica out of service and waits for what runs."""
        grace = request.grace_ms / 1000 if request.grace_ms else None
        return stage_pb2.DrainResponse(left=await self._drain.run(grace))
