"""Tensors that are made in the slab itself: no copy, and nothing left when it does not come to that."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.tensor_producer import MIB, in_slab, random_tensor
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import (
    DeadlineExceeded,
    Draining,
    RequestCancelled,
    SetupError,
    TensorLost,
)
from omnistage_common.ids import HostId
from omnistage_common.payloads import INLINE_LIMIT, ElementType, Tensor, TensorHeader, TensorRef
from omnistage_common.tensors import Reservation, TensorPlane, TransportKind

NewPlane = Callable[..., TensorPlane]
TENSOR = random_tensor(MIB)


async def reserved(
    plane: TensorPlane, header: TensorHeader = TENSOR.header, *, seconds: float = 60
) -> Reservation[memoryview]:
    return await plane.reserve(header, owner="a", deadline=Deadline.after(seconds))


async def read(plane: TensorPlane, ref: Tensor | TensorRef) -> Tensor:
    return await plane.fetch(ref, owner="reader", deadline=Deadline.after(60))


def empty(plane: TensorPlane) -> bool:
    now = plane.statistics()
    return (now.leases, now.used_bytes, now.settling) == (0, 0, 0)


async def test_what_is_written_in_place_is_what_consumers_read(
    new_plane: NewPlane, tmp_path: Path
) -> None:
    producer, consumer = new_plane(), new_plane()

    with await reserved(producer) as place:
        assert not place.data.readonly
        assert place.data.nbytes == MIB
        place.data[:] = TENSOR.data
        ref = await place.seal()

    assert isinstance(ref, TensorRef)
    assert (await read(consumer, ref)).data == TENSOR.data
    assert (await read(producer, ref)).data == TENSOR.data
    content = (tmp_path / in_slab(ref).segment).read_bytes()
    assert content[ref.location.offset :][:MIB] == TENSOR.data
    assert producer.release([ref.lease]) == 1
    assert empty(producer)


async def test_a_small_one_goes_inline_and_its_room_is_free_again(new_plane: NewPlane) -> None:
    plane = new_plane()
    header = TensorHeader(element_type=ElementType.UINT8, shape=(INLINE_LIMIT,))

    with await reserved(plane, header) as place:
        place.data[:] = bytes([7]) * INLINE_LIMIT
        sealed = await place.seal()

    assert sealed == Tensor(header=header, data=bytes([7]) * INLINE_LIMIT)
    assert empty(plane)


async def test_what_is_not_sealed_is_given_back(new_plane: NewPlane) -> None:
    plane = new_plane()

    with await reserved(plane) as place:
        place.data[:4] = b"half"
        assert plane.statistics().leases == 1
    assert empty(plane)

    with pytest.raises(ZeroDivisionError), await reserved(plane):
        raise ZeroDivisionError
    assert empty(plane)


async def test_a_reservation_is_room_that_others_wait_for(new_plane: NewPlane) -> None:
    plane = new_plane(slab_bytes=MIB + MIB // 2)

    with await reserved(plane):
        with pytest.raises(DeadlineExceeded):
            await reserved(plane, seconds=0.02)
        with pytest.raises(SetupError, match=r"limits\.slabBytes"):
            await reserved(plane, random_tensor(2 * MIB).header)
    with await reserved(plane):
        pass
    assert empty(plane)


@pytest.mark.parametrize("cause", ["release", "deadline", "close"])
async def test_an_unwanted_one_is_not_sealed_and_its_memory_waits_for_its_writer(
    cause: str, new_plane: NewPlane
) -> None:
    plane = new_plane()
    errors = {"release": RequestCancelled, "deadline": DeadlineExceeded, "close": Draining}

    with await reserved(plane, seconds=0.05 if cause == "deadline" else 60) as place:
        match cause:
            case "release":
                assert plane.release_owner("a") == 1
            case "deadline":
                await asyncio.sleep(0.06)
            case "close":
                plane.close()
        assert plane.statistics().settling == 1
        place.data[:] = TENSOR.data
        with pytest.raises(errors[cause]):
            await place.seal()
    assert empty(plane)


@pytest.mark.parametrize("tensor", [TENSOR, random_tensor(9 * MIB)])
async def test_a_peer_that_reads_over_a_network_gets_a_digest_with_it(
    tensor: Tensor, new_plane: NewPlane
) -> None:
    plane = new_plane(slab_bytes=32 * MIB)
    before = await plane.publish(tensor, owner="a", deadline=Deadline.after(60))
    assert isinstance(before, TensorRef)
    assert before.digest is None

    await plane.negotiate(HostId("elsewhere"), [TransportKind.TCP])
    with await reserved(plane, tensor.header) as place:
        place.data[:] = tensor.data
        sealed = await place.seal()
    after = await plane.publish(tensor, owner="a", deadline=Deadline.after(60))

    assert isinstance(sealed, TensorRef)
    assert isinstance(after, TensorRef)
    assert sealed.digest == after.digest is not None
    assert after.digest == await plane.digest(before.incarnation, before.lease, before.token)
    assert sealed.checksum == after.checksum == before.checksum


async def test_tokens_are_of_one_lease_each(new_plane: NewPlane) -> None:
    plane = new_plane()
    first, second = [
        await plane.publish(TENSOR, owner="a", deadline=Deadline.after(60)) for _ in range(2)
    ]
    assert isinstance(first, TensorRef)
    assert isinstance(second, TensorRef)
    assert len({first.token, second.token}) == 2
    assert len(first.token) == 32

    assert await plane.digest(first.incarnation, first.lease, first.token) is not None
    with pytest.raises(TensorLost, match="the token is not that of its lease"):
        await plane.digest(first.incarnation, first.lease, second.token)
