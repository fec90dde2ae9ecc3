"""Tensors on a device: the same room, leases, stamps and waits as in the slab, and never mapped.

The device is the engine's own region on a CPU.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import structlog
from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from fakes.device_tensors import WatchedRegion, bytes_on_device, made_on_device, on_device, region
from fakes.tensor_producer import MIB, random_tensor
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import (
    DeadlineExceeded,
    Draining,
    RequestCancelled,
    SetupError,
    TensorLost,
)
from omnistage_common.ids import HostId, LeaseId, TensorToken, this_host
from omnistage_common.payloads import (
    INLINE_LIMIT,
    DeviceLocation,
    DeviceTensor,
    ElementType,
    Tensor,
    TensorHeader,
    TensorRef,
)
from omnistage_common.tensors import TensorPlane, TransportKind
from omnistage_common.tensors.calls import NoTransport
from omnistage_common.tensors.publishing import ReadRefused
from omnistage_stage.engines.torch.conversion import fill

NewPlane = Callable[..., TensorPlane]
TENSOR = random_tensor(MIB)
FIELD = r"limits\.deviceSlabBytes"
SHARED_MEMORY, TCP, STREAM = TransportKind.SHARED_MEMORY, TransportKind.TCP, TransportKind.STREAM


@pytest.fixture
def plane(new_plane: NewPlane) -> TensorPlane:
    """A process with a device of four MiB and a bit."""
    found = new_plane()
    found.attach(made=region(4 * MIB + 4096), received=None)
    return found


def soon(seconds: float = 60) -> Deadline:
    return Deadline.after(seconds)


def empty(plane: TensorPlane) -> bool:
    now = plane.statistics()
    held = now.leases, now.settling, now.waiting, now.used_bytes, now.device_used_bytes
    return held == (0, 0, 0, 0, 0)


async def waiting_for_room(plane: TensorPlane, count: int) -> None:
    """Returns when that many producers wait for room."""
    async with asyncio.timeout(10):
        while plane.statistics().waiting != count:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)


def memory_of(plane: TensorPlane) -> Any:
    assert plane._device is not None
    return plane._device.memory


async def test_what_was_made_there_stays_there_for_a_reader_of_the_same_device(
    plane: TensorPlane,
) -> None:
    ref = await made_on_device(plane, TENSOR)
    assert ref.location == DeviceLocation(device="cpu", offset=64)
    assert ref.digest is None

    tensor = await plane.fetch_to_device(ref, owner="reader", deadline=soon())

    assert isinstance(tensor, DeviceTensor)
    assert (tensor.header, tensor.offset) == (TENSOR.header, 64)
    assert bytes_on_device(tensor) == TENSOR.data
    assert plane.statistics().leases == 1, "it was not copied"


async def test_a_reader_on_the_host_of_the_same_process_gets_a_copy_of_its_own(
    plane: TensorPlane,
) -> None:
    ref = await made_on_device(plane, TENSOR)

    tensor = await plane.fetch(ref, owner="reader", deadline=soon())
    plane.release([ref.lease])

    assert tensor == TENSOR
    assert plane.statistics().received == 1
    assert plane.release_owner("reader") == 1
    assert empty(plane)


async def test_slab_and_device_are_counted_apart_and_their_leases_never_confused(
    plane: TensorPlane,
) -> None:
    refs = [await made_on_device(plane, TENSOR)]
    made = await plane.publish(random_tensor(MIB, 1), owner="a", deadline=soon())
    assert isinstance(made, TensorRef)
    refs += [made, await made_on_device(plane, random_tensor(MIB, 2))]

    assert [ref.lease for ref in refs] == [1, 2, 3]
    now = plane.statistics()
    assert (now.leases, now.device_leases) == (3, 2)
    assert now.used_bytes == MIB + 64
    assert (now.device_used_bytes, now.device_bytes) == (2 * (MIB + 64), 4 * MIB + 4096)
    for seed, ref in enumerate(refs):
        fetched = await plane.fetch(ref, owner="reader", deadline=soon())
        assert fetched.data == random_tensor(MIB, seed).data
    assert plane.release([ref.lease for ref in refs]) == 3
    assert plane.release([ref.lease for ref in refs]) == 0
    assert plane.release_owner("reader") == 2
    assert empty(plane)


async def test_a_full_device_makes_producers_wait_in_their_order_until_room_is_there(
    plane: TensorPlane,
) -> None:
    kept = [await made_on_device(plane, TENSOR, owner=number) for number in range(4)]
    waiting = [
        asyncio.create_task(made_on_device(plane, random_tensor(MIB, n), owner=n)) for n in (8, 9)
    ]
    await waiting_for_room(plane, 2)

    plane.release([kept[2].lease])
    first = await waiting[0]

    assert first.location == kept[2].location
    assert not waiting[1].done()
    plane.release_owner(0)
    assert (await waiting[1]).location == kept[0].location


async def test_waiting_for_the_device_ends_with_the_deadline_the_owner_or_the_plane(
    plane: TensorPlane,
) -> None:
    for number in range(4):
        await made_on_device(plane, TENSOR, owner=number)

    with pytest.raises(DeadlineExceeded, match=FIELD):
        await made_on_device(plane, TENSOR, deadline=soon(0.02))
    unwanted = asyncio.create_task(made_on_device(plane, TENSOR, owner="unwanted"))
    late = asyncio.create_task(made_on_device(plane, TENSOR, owner="late"))
    await waiting_for_room(plane, 2)
    plane.release_owner("unwanted")
    with pytest.raises(RequestCancelled):
        await unwanted
    plane.close()
    with pytest.raises(Draining):
        await late
    assert empty(plane)


async def test_a_deadline_ends_leases_on_the_device(plane: TensorPlane) -> None:
    ref = await made_on_device(plane, TENSOR, deadline=soon(0.05))
    await made_on_device(plane, random_tensor(3 * MIB), owner="next")

    with pytest.raises(DeadlineExceeded):
        await made_on_device(plane, random_tensor(2 * MIB), deadline=soon(0.2))
    with pytest.raises(TensorLost, match="its lease ended"):
        await plane.fetch(ref, owner="reader", deadline=soon())


async def test_what_can_never_fit_or_has_no_device_names_the_setting(
    plane: TensorPlane, new_plane: NewPlane
) -> None:
    with pytest.raises(SetupError, match=f"raise `{FIELD}`") as too_large:
        await made_on_device(plane, random_tensor(5 * MIB))
    with pytest.raises(SetupError, match=f"set `{FIELD}`") as absent:
        await made_on_device(new_plane(), TENSOR)
    assert too_large.value.field == absent.value.field == "limits.deviceSlabBytes"


@pytest.mark.parametrize("cause", ["release", "close"])
async def test_an_unwanted_one_is_not_sealed_and_its_place_waits_for_its_writer(
    cause: str, plane: TensorPlane
) -> None:
    place = await plane.reserve_on_device(TENSOR.header, owner="a", deadline=soon())
    with place:
        plane.release_owner("a") if cause == "release" else plane.close()
        assert plane.statistics().settling == 1
        fill(place.data, on_device(TENSOR))
        with pytest.raises(RequestCancelled if cause == "release" else Draining):
            await place.seal()
    assert empty(plane)


async def test_a_place_that_is_not_sealed_is_given_back_and_was_never_readable(
    plane: TensorPlane,
) -> None:
    place = await plane.reserve_on_device(TENSOR.header, owner="a", deadline=soon())
    with place:
        assert bytes(memory_of(plane).read(0, 64)) == bytes(64)
    assert empty(plane)


async def test_the_stamp_stands_before_the_bytes_as_long_as_the_lease(plane: TensorPlane) -> None:
    ref = await made_on_device(plane, TENSOR)
    assert int.from_bytes(memory_of(plane).read(0, 8), "little") == ref.lease

    plane.release([ref.lease])

    assert bytes(memory_of(plane).read(0, 64)) == bytes(64)


@pytest.mark.parametrize("at", [0, 16 * 1024 + (MIB - 32 * 1024) // 16, MIB - 1])
async def test_bytes_that_changed_where_they_are_sampled_are_noticed(
    at: int, plane: TensorPlane
) -> None:
    ref = await made_on_device(plane, TENSOR)
    (before,) = memory_of(plane).read(ref.location.offset + at, 1)
    memory_of(plane).write(ref.location.offset + at, bytes([before ^ 1]))

    with pytest.raises(TensorLost, match="its bytes changed"):
        await plane.fetch(ref, owner="reader", deadline=soon())
    plane.release_owner("a")
    assert empty(plane)


async def test_an_altered_reference_is_refused(plane: TensorPlane) -> None:
    ref = await made_on_device(plane, TENSOR)
    relabelled = replace(ref, header=replace(ref.header, rate_hz=8000))
    shorter = replace(ref, length=1, header=replace(ref.header, shape=(1,)))

    for altered, why in (
        (replace(ref, token=TensorToken("0" * 32)), "the token"),
        (replace(ref, lease=LeaseId(99)), "its lease ended"),
        (relabelled, "its bytes changed"),
        (shorter, "the reference says 1"),
    ):
        with pytest.raises(TensorLost, match=why):
            await plane.fetch(altered, owner="reader", deadline=soon())
    with pytest.raises(ReadRefused):
        await plane.digest(ref.incarnation, ref.lease, TensorToken("0" * 32))


async def test_the_host_sees_no_more_than_a_piece_of_it_at_a_time(new_plane: NewPlane) -> None:
    plane, tensor = new_plane(slab_bytes=16 * MIB), random_tensor(9 * MIB)
    memory = WatchedRegion(10 * MIB)
    plane.attach(made=memory, received=None)

    ref = await made_on_device(plane, tensor)
    assert sum(memory.reads) < 128 * 1024, "a sample, whatever the length"
    memory.reads.clear()
    assert (await plane.fetch(ref, owner="reader", deadline=soon())) == tensor
    assert max(memory.reads) <= 512 * 1024
    memory.reads.clear()
    found = await plane.digest(ref.incarnation, ref.lease, ref.token)

    assert found == xxh3_64_intdigest(tensor.data)
    assert max(memory.reads) <= MIB


async def test_negotiation_never_offers_a_device_to_be_mapped(plane: TensorPlane) -> None:
    agreed = await plane.negotiate(this_host(), [SHARED_MEMORY, TCP, STREAM], on_device=True)

    assert agreed.kind is TCP
    assert agreed.session is not None
    assert agreed.session.base == memory_of(plane).address
    assert agreed.session.segment == "cpu"
    assert agreed.missing == "tensors on a device cannot be mapped"
    with pytest.raises(NoTransport, match="cannot be mapped"):
        await plane.negotiate(this_host(), [SHARED_MEMORY], on_device=True)
    in_slab = await plane.negotiate(this_host(), [SHARED_MEMORY, STREAM])
    assert in_slab.kind is SHARED_MEMORY


async def test_memory_that_the_processor_cannot_read_is_for_rdma_or_the_stream(
    new_plane: NewPlane,
) -> None:
    plane = new_plane()
    plane.attach(made=WatchedRegion(2 * MIB, on_host=False), received=None)

    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            agreed = await plane.negotiate(HostId("elsewhere"), [TCP, STREAM], on_device=True)
            assert agreed.kind is STREAM
            assert agreed.missing == "memory of cpu can be read by RDMA only"

    assert [line["transport"] for line in logs] == ["tcp"], "said once"
    assert (await plane.negotiate(HostId("elsewhere"), [TCP])).kind is TCP


async def test_a_process_without_a_device_has_nothing_to_read_there(new_plane: NewPlane) -> None:
    with pytest.raises(NoTransport, match="no device memory"):
        await new_plane().negotiate(HostId("elsewhere"), [TCP], on_device=True)


async def test_a_reader_that_may_only_map_is_told_why_it_cannot(
    plane: TensorPlane, new_plane: NewPlane
) -> None:
    ref = await made_on_device(plane, TENSOR)

    with pytest.raises(TensorLost, match="no TensorService for other hosts"):
        await new_plane().fetch(ref, owner="reader", deadline=soon())


async def test_a_device_that_does_not_answer_loses_its_tensors_and_holds_no_lease(
    new_plane: NewPlane,
) -> None:
    def fail(_: int) -> None:
        raise TensorLost("tensors on cpu are lost: it fell off the bus")

    plane, memory = new_plane(), WatchedRegion(2 * MIB)
    plane.attach(made=memory, received=None)
    ref = await made_on_device(plane, TENSOR)
    memory.on_read = fail

    with pytest.raises(TensorLost, match="fell off the bus"):
        await plane.fetch(ref, owner="reader", deadline=soon())
    with pytest.raises(TensorLost, match="fell off the bus"):
        await made_on_device(plane, random_tensor(MIB // 2))
    plane.release_owner("a")
    assert empty(plane)


@pytest.mark.parametrize("there", ["slab", "device"])
async def test_less_than_was_reserved_may_be_made_and_more_may_not(
    there: str, plane: TensorPlane
) -> None:
    reserve = plane.reserve if there == "slab" else plane.reserve_on_device
    made = random_tensor(MIB // 2)
    with await reserve(TENSOR.header, owner="a", deadline=soon()) as place:
        fill(place.data, on_device(made))
        with pytest.raises(ValueError, match=f"{MIB + 1} bytes was made where {MIB}"):
            await place.seal(replace(made.header, shape=(MIB + 1,)))
        ref = await place.seal(made.header)

    assert isinstance(ref, TensorRef)
    assert (ref.length, ref.header) == (MIB // 2, made.header)
    assert (await plane.fetch(ref, owner="reader", deadline=soon())).data == made.data
    plane.release_owner("a")
    plane.release_owner("reader")
    assert empty(plane)


@pytest.mark.parametrize("there", ["slab", "device"])
async def test_what_turns_out_to_be_small_goes_inline(there: str, plane: TensorPlane) -> None:
    reserve = plane.reserve if there == "slab" else plane.reserve_on_device
    header = TensorHeader(element_type=ElementType.UINT8, shape=(INLINE_LIMIT,))
    made = random_tensor(INLINE_LIMIT)
    with await reserve(TENSOR.header, owner="a", deadline=soon()) as place:
        fill(place.data, on_device(made))
        sealed = await place.seal(header)

    assert sealed == Tensor(header=header, data=made.data)
    assert empty(plane)
