"""The gRPC door of the tensor plane: TensorService, a thin loop around the plane.

Stages and gateway open the same door. Nobody gets bytes here without the token of their lease.
"""

from collections.abc import AsyncIterator
from typing import Any, Final, NoReturn

import grpc.aio

from omnistage_common.errors import OmnistageError, truncated
from omnistage_common.ids import HostId, Incarnation, LeaseId, TensorToken
from omnistage_common.tensors.calls import NoTransport
from omnistage_common.tensors.plane import TensorPlane
from omnistage_common.tensors.publishing import ReadRefused, Refusal
from omnistage_common.tensors.wire import agreement_to_pb, kinds_from_pb
from omnistage_protos.tensor.v1 import tensor_pb2, tensor_pb2_grpc

__all__ = ["TENSOR_SERVICE", "TensorServicer", "open_door"]

TENSOR_SERVICE: Final = tensor_pb2.DESCRIPTOR.services_by_name["TensorService"].full_name
"""Its full name on the wire, for reflection."""

_STATUS: Final = {
    Refusal.STALE: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.ENDED: grpc.StatusCode.NOT_FOUND,
    Refusal.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
}

_Context = grpc.aio.ServicerContext


def open_door(server: grpc.aio.Server, plane: TensorPlane) -> None:
    """Adds a plane's TensorService to a server."""
    tensor_pb2_grpc.add_TensorServiceServicer_to_server(TensorServicer(plane), server)


class TensorServicer(tensor_pb2_grpc.TensorServiceServicer):
    """See the service's comments in `tensor.proto`."""

    def __init__(self, plane: TensorPlane) -> None:
        self._plane = plane

    async def Negotiate(  # noqa: N802
        self,
        request: tensor_pb2.NegotiateRequest,
        context: "_Context[tensor_pb2.NegotiateRequest, tensor_pb2.NegotiateResponse]",
    ) -> tensor_pb2.NegotiateResponse:
        """Says by which transport the caller can read this process's tensors."""
        if not request.transports:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "transports: name at least one you can read"
            )
        kinds = kinds_from_pb(list(request.transports))
        try:
            agreement = await self._plane.negotiate(
                HostId(request.host), kinds, on_device=request.on_device
            )
        except NoTransport as none:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, none.message)
        return agreement_to_pb(agreement)

    async def Read(  # noqa: N802
        self,
        request: tensor_pb2.ReadRequest,
        context: "_Context[tensor_pb2.ReadRequest, tensor_pb2.ReadResponse]",
    ) -> AsyncIterator[tensor_pb2.ReadResponse]:
        """Sends the bytes of a tensor and then their digest."""
        try:
            pieces = self._plane.pieces(
                Incarnation(request.incarnation),
                LeaseId(request.lease),
                TensorToken(request.token),
            )
            async for piece in pieces:
                if isinstance(piece, int):
                    yield tensor_pb2.ReadResponse(digest=piece)
                else:
                    yield tensor_pb2.ReadResponse(data=bytes(piece))
        except OmnistageError as refused:
            await _refuse(context, refused)

    async def Digest(  # noqa: N802
        self,
        request: tensor_pb2.DigestRequest,
        context: "_Context[tensor_pb2.DigestRequest, tensor_pb2.DigestResponse]",
    ) -> tensor_pb2.DigestResponse:
        """Works out the digest of a tensor."""
        try:
            digest = await self._plane.digest(
                Incarnation(request.incarnation),
                LeaseId(request.lease),
                TensorToken(request.token),
            )
        except OmnistageError as refused:
            await _refuse(context, refused)
        return tensor_pb2.DigestResponse(digest=digest)

    async def Release(  # noqa: N802
        self,
        request: tensor_pb2.ReleaseRequest,
        context: "_Context[tensor_pb2.ReleaseRequest, tensor_pb2.ReleaseResponse]",
    ) -> tensor_pb2.ReleaseResponse:
        """Ends leases early."""
        if Incarnation(request.incarnation) != self._plane.incarnation:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "these leases belong to an earlier life of this process and are gone",
            )
        released = self._plane.release(LeaseId(lease) for lease in request.leases)
        return tensor_pb2.ReleaseResponse(released=released)


async def _refuse(context: "_Context[Any, Any]", refused: OmnistageError) -> NoReturn:
    code = grpc.StatusCode.UNAVAILABLE
    if isinstance(refused, ReadRefused):
        code = _STATUS[refused.refusal]
    await context.abort(code, truncated(refused.message))
