"""What a consumer asks of a producer's TensorService, with errors of ours in place of gRPC's.

One channel per peer, opened with the first call. Keepalive ends a call to a frozen peer after three
seconds; a dead one ends it at once.
"""

from collections.abc import AsyncGenerator, Iterable
from typing import Final

import grpc.aio

from omnistage_common.channels import CHANNEL_OPTIONS
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import DeadlineExceeded, OmnistageError, TensorLost, truncated
from omnistage_common.ids import HostId
from omnistage_common.payloads import TensorRef
from omnistage_common.tensors.transport import Agreement, TransportKind
from omnistage_common.tensors.wire import agreement_from_pb, kind_to_pb
from omnistage_protos.tensor.v1 import tensor_pb2, tensor_pb2_grpc

__all__ = ["NoTransport", "PeerCalls"]

_NO_TRANSPORT: Final = grpc.StatusCode.FAILED_PRECONDITION


class NoTransport(TensorLost):
    """The peer is there, and the two ends have no way in common."""


class PeerCalls:
    """The TensorService of one peer.

    Args:
        address: `HOST:PORT`.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = tensor_pb2_grpc.TensorServiceStub(self._channel)

    async def negotiate(
        self,
        host: HostId,
        kinds: Iterable[TransportKind],
        deadline: Deadline,
        *,
        at_most: float,
        on_device: bool = False,
    ) -> Agreement:
        """By which of these ways the peer can be read, the best first.

        Args:
            host: This host.
            kinds: What this process can do.
            deadline: Of the request.
            at_most: Seconds after which a peer that says nothing counts as gone.
            on_device: Whether it is about tensors on the peer's device.

        Raises:
            NoTransport: By none.
            TensorLost: The peer does not answer.
            DeadlineExceeded: The deadline passed.
        """
        request = tensor_pb2.NegotiateRequest(
            host=host, transports=map(kind_to_pb, kinds), on_device=on_device
        )
        try:
            answer = await self._stub.Negotiate(request, timeout=min(at_most, _left(deadline)))
        except grpc.aio.AioRpcError as failed:
            if failed.code() is _NO_TRANSPORT:
                raise NoTransport(truncated(failed.details() or "")) from failed
            raise self._translated(failed, deadline, "it") from failed
        return agreement_from_pb(answer)

    async def digest(self, ref: TensorRef, deadline: Deadline) -> int:
        """The digest of a tensor that was published without.

        Raises:
            TensorLost: Lease or producer are gone, or the token is wrong.
            DeadlineExceeded: The deadline passed.
        """
        request = tensor_pb2.DigestRequest(
            incarnation=ref.incarnation, lease=ref.lease, token=ref.token
        )
        try:
            answer = await self._stub.Digest(request, timeout=_left(deadline))
        except grpc.aio.AioRpcError as failed:
            raise self._translated(failed, deadline, _named(ref)) from failed
        return answer.digest

    async def read(self, ref: TensorRef, deadline: Deadline) -> AsyncGenerator[bytes | int, None]:
        """The bytes of a tensor, piece by piece, and at last their digest.

        Raises:
            TensorLost: Lease or producer are gone, or the token is wrong.
            DeadlineExceeded: The deadline passed.
        """
        request = tensor_pb2.ReadRequest(
            incarnation=ref.incarnation, lease=ref.lease, token=ref.token
        )
        call = self._stub.Read(request, timeout=_left(deadline))
        try:
            async for message in call:
                if message.data:
                    yield message.data
                if message.HasField("digest"):
                    yield message.digest
        except grpc.aio.AioRpcError as failed:
            raise self._translated(failed, deadline, _named(ref)) from failed
        finally:
            call.cancel()

    def _translated(
        self, failed: grpc.aio.AioRpcError, deadline: Deadline, what: str
    ) -> OmnistageError:
        code, details = failed.code(), truncated(failed.details() or "")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and deadline.passed:
            return DeadlineExceeded(f"{what} did not come from {self.address} before the deadline")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            details = "there is no TensorService of this version"
        return TensorLost(f"{what} is lost: {self.address} answers {code.name}: {details}")


def _left(deadline: Deadline) -> float:
    """Seconds that a call may take.

    Raises:
        DeadlineExceeded: None.
    """
    left = deadline.remaining()
    if left <= 0:
        raise DeadlineExceeded("a tensor was not asked for before the request's deadline")
    return left


def _named(ref: TensorRef) -> str:
    return f"tensor of lease {ref.lease} of {ref.incarnation}"
