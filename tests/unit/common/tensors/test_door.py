"""TensorService over a real channel: who gets bytes, who does not, and with which status."""

from collections.abc import AsyncIterator, Callable

import grpc.aio
import pytest
from xxhash import xxh3_64_intdigest

from fakes.tensor_producer import MIB, in_slab, random_tensor
from omnistage_common.channels import CHANNEL_OPTIONS, SERVER_OPTIONS
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import DeadlineExceeded, ProtocolViolation
from omnistage_common.ids import HostId, this_host
from omnistage_common.payloads import TensorRef
from omnistage_common.tensors import TensorPlane, TransportKind
from omnistage_common.tensors.calls import NoTransport, PeerCalls
from omnistage_common.tensors.door import TENSOR_SERVICE, open_door
from omnistage_common.tensors.publishing import ReadRefused
from omnistage_common.tensors.wire import agreement_from_pb, kind_to_pb, kinds_from_pb
from omnistage_protos.tensor.v1 import tensor_pb2, tensor_pb2_grpc

NewPlane = Callable[..., TensorPlane]
TENSOR = random_tensor(2 * MIB + 5)


@pytest.fixture
def plane(new_plane: NewPlane) -> TensorPlane:
    return new_plane()


@pytest.fixture
async def address(plane: TensorPlane) -> AsyncIterator[str]:
    """Where the plane's door is."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")
    open_door(server, plane)
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@pytest.fixture
async def stub(address: str) -> "AsyncIterator[tensor_pb2_grpc.TensorServiceAsyncStub]":
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        yield tensor_pb2_grpc.TensorServiceStub(channel)


async def published(plane: TensorPlane) -> TensorRef:
    ref = await plane.publish(TENSOR, owner="a", deadline=Deadline.after(60))
    assert isinstance(ref, TensorRef)
    return ref


def test_its_name_is_that_of_the_contract() -> None:
    assert TENSOR_SERVICE == "omnistage.tensor.v1.TensorService"


async def test_whoever_shows_the_token_gets_the_bytes_and_their_digest(
    plane: TensorPlane, stub: "tensor_pb2_grpc.TensorServiceAsyncStub"
) -> None:
    ref = await published(plane)
    request = tensor_pb2.ReadRequest(incarnation=ref.incarnation, lease=ref.lease, token=ref.token)

    messages = [message async for message in stub.Read(request)]

    assert [len(message.data) for message in messages] == [128 * 1024] * 16 + [5, 0]
    assert b"".join(message.data for message in messages) == TENSOR.data
    digest = xxh3_64_intdigest(TENSOR.data)
    assert [m.digest for m in messages if m.HasField("digest")] == [digest]
    answer = await stub.Digest(
        tensor_pb2.DigestRequest(incarnation=ref.incarnation, lease=ref.lease, token=ref.token)
    )
    assert answer.digest == digest


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"token": "0" * 32}, grpc.StatusCode.PERMISSION_DENIED),
        ({"token": ""}, grpc.StatusCode.PERMISSION_DENIED),
        ({"lease": 99}, grpc.StatusCode.NOT_FOUND),
        ({"incarnation": "earlier"}, grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
async def test_nobody_else_does(
    change: dict[str, object],
    code: grpc.StatusCode,
    plane: TensorPlane,
    stub: "tensor_pb2_grpc.TensorServiceAsyncStub",
) -> None:
    ref = await published(plane)
    fields = {"incarnation": ref.incarnation, "lease": ref.lease, "token": ref.token, **change}

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Digest(tensor_pb2.DigestRequest(**fields))  # type: ignore[arg-type]
    assert refused.value.code() is code
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        async for _ in stub.Read(tensor_pb2.ReadRequest(**fields)):  # type: ignore[arg-type]
            pass
    assert refused.value.code() is code
    assert refused.value.details()


async def test_a_lease_that_ends_on_the_way_ends_the_stream(
    plane: TensorPlane, stub: "tensor_pb2_grpc.TensorServiceAsyncStub"
) -> None:
    ref = await published(plane)
    pieces = plane.pieces(ref.incarnation, ref.lease, ref.token)
    assert isinstance(await anext(pieces), memoryview)
    request = tensor_pb2.ReleaseRequest(incarnation=ref.incarnation, leases=[ref.lease])
    assert (await stub.Release(request)).released == 1

    with pytest.raises(ReadRefused, match="ended while it was read"):
        await anext(pieces)


async def test_the_first_way_that_both_have_is_agreed_on(plane: TensorPlane, address: str) -> None:
    calls = PeerCalls(address)

    async def agreed(host: HostId, *kinds: TransportKind) -> TransportKind:
        answer = await calls.negotiate(host, kinds, Deadline.after(10), at_most=10)
        assert answer.incarnation == plane.incarnation
        assert (answer.session is not None) == (answer.kind is TransportKind.TCP)
        return answer.kind

    here, elsewhere = this_host(), HostId("elsewhere")
    shared, tcp, stream = TransportKind.SHARED_MEMORY, TransportKind.TCP, TransportKind.STREAM
    assert await agreed(here, shared, stream) is shared
    assert await agreed(elsewhere, shared, stream) is stream
    assert await agreed(elsewhere, TransportKind.RDMA, tcp, stream) is tcp
    assert await agreed(elsewhere, stream, tcp) is stream
    with pytest.raises(NoTransport, match="the caller is elsewhere"):
        await agreed(elsewhere, shared)


async def test_a_session_names_the_slab_that_was_registered(
    plane: TensorPlane, address: str
) -> None:
    ref = await published(plane)

    answer = await PeerCalls(address).negotiate(
        HostId("elsewhere"), [TransportKind.TCP], Deadline.after(10), at_most=10
    )

    assert answer.session is not None
    assert answer.session.segment == in_slab(ref).segment
    assert answer.session.base == plane._slab.slab.address
    assert answer.session.name.startswith("127.0.0.1:")


async def test_a_call_that_is_late_for_the_request_says_so(
    plane: TensorPlane, address: str
) -> None:
    ref = await published(plane)

    with pytest.raises(DeadlineExceeded, match="before the request's deadline"):
        await PeerCalls(address).digest(ref, Deadline.after(-1))


def test_ways_that_this_version_does_not_know_are_passed_over() -> None:
    tcp = kind_to_pb(TransportKind.TCP)

    assert kinds_from_pb([77, tcp, 0]) == (TransportKind.TCP,)
    with pytest.raises(ProtocolViolation, match="chose transport 0"):
        agreement_from_pb(tensor_pb2.NegotiateResponse())
