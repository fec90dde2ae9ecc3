"""The tensor plane: what goes inline, what is kept, who waits, and that nothing is left."""

import asyncio
import gc
import os
import random
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.tensor_producer import MIB, Producer, in_slab, random_tensor
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import (
    DeadlineExceeded,
    Draining,
    RequestCancelled,
    SetupError,
    TensorLost,
)
from omnistage_common.ids import HostId, LeaseId, new_incarnation, this_host
from omnistage_common.payloads import INLINE_LIMIT, ElementType, Tensor, TensorHeader, TensorRef
from omnistage_common.tensors import SHARED_MEMORY_FOLDER, TensorPlane

NewPlane = Callable[..., TensorPlane]

LARGE = random_tensor(INLINE_LIMIT + 1)
HUGE = random_tensor(9 * MIB)
"""Copied in several pieces, checked in a thread."""


def soon() -> Deadline:
    return Deadline.after(60)


async def published(plane: TensorPlane, tensor: Tensor = LARGE, owner: str = "a") -> TensorRef:
    ref = await plane.publish(tensor, owner=owner, deadline=soon())
    assert isinstance(ref, TensorRef)
    return ref


async def fetched_by(plane: TensorPlane, ref: Tensor | TensorRef) -> Tensor:
    return await plane.fetch(ref, owner="reader", deadline=soon())


async def waiting(plane: TensorPlane, count: int) -> None:
    """Returns when that many publishers wait for room."""
    async with asyncio.timeout(10):
        while plane.statistics().waiting != count:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)


def segments(directory: Path) -> set[str]:
    """Names of the segments of this process."""
    return {path.name for path in directory.glob(f"omnistage-{os.getpid()}-*")}


def idle(plane: TensorPlane) -> bool:
    """Whether a plane holds nothing: no room, no lease, no wait, no timer."""
    now = plane.statistics()
    return (now.leases, now.used_bytes, now.waiting) == (
        0,
        0,
        0,
    ) and plane._publisher._room._timer is None


async def test_a_small_tensor_is_its_own_reference(new_plane: NewPlane, tmp_path: Path) -> None:
    plane = new_plane()
    tensor = random_tensor(INLINE_LIMIT)

    assert await plane.publish(tensor, owner="a", deadline=soon()) is tensor
    assert plane.publish_now(tensor) is tensor
    assert await fetched_by(plane, tensor) is tensor
    assert segments(tmp_path) == set(), "no segment before the first large tensor"


async def test_a_small_tensor_gets_bytes_of_its_own(new_plane: NewPlane) -> None:
    plane = new_plane()
    buffer = array("h", [1, 2, 3])
    header = TensorHeader(element_type=ElementType.INT16, shape=(3,), rate_hz=16_000)
    kept = await plane.publish(
        Tensor(header=header, data=memoryview(buffer)), owner="a", deadline=soon()
    )
    buffer[0] = 9

    assert kept == Tensor(header=header, data=b"\1\0\2\0\3\0")


def test_a_large_tensor_is_refused_where_nobody_can_wait(new_plane: NewPlane) -> None:
    with pytest.raises(ValueError, match="65537 bytes is over the 65536"):
        new_plane().publish_now(LARGE)


@pytest.mark.parametrize("length", [0, 11, 13])
async def test_bytes_that_are_not_what_the_header_says_are_refused(
    length: int, new_plane: NewPlane
) -> None:
    header = TensorHeader(element_type=ElementType.FLOAT32, shape=(3,))
    tensor = Tensor(header=header, data=bytes(length))

    with pytest.raises(ValueError, match=f"float32 has 12 bytes, {length} were given"):
        await new_plane().publish(tensor, owner="a", deadline=soon())


@pytest.mark.parametrize("tensor", [LARGE, HUGE])
async def test_another_plane_reads_a_large_tensor_in_place(
    tensor: Tensor, new_plane: NewPlane
) -> None:
    producer, consumer = new_plane(slab_bytes=16 * MIB), new_plane()
    ref = await published(producer, tensor)

    fetched = await fetched_by(consumer, ref)

    assert fetched.header == tensor.header
    assert isinstance(fetched.data, memoryview)
    assert fetched.data.readonly
    assert fetched.data == tensor.data
    assert consumer.statistics().mapped_segments == 1
    consumer.forget(ref.incarnation)
    assert consumer.statistics().mapped_segments == 0


async def test_the_elements_of_a_strided_view_are_published_in_order(new_plane: NewPlane) -> None:
    plane = new_plane()
    samples = array("h", range(30_000)) * 4
    every_second = memoryview(samples)[::2]
    header = TensorHeader(element_type=ElementType.INT16, shape=(60_000,))

    ref = await published(plane, Tensor(header=header, data=every_second))

    assert (await fetched_by(new_plane(), ref)).data == every_second.tobytes()


async def test_a_process_reads_its_own_tensors_without_a_transport(new_plane: NewPlane) -> None:
    plane = new_plane()
    ref = await published(plane)

    assert (await fetched_by(plane, ref)).data == LARGE.data
    assert plane.statistics().mapped_segments == 0

    with pytest.raises(TensorLost, match="65537 bytes, the reference says 65538"):
        await fetched_by(
            plane, replace(ref, length=65_538, header=replace(ref.header, shape=(65_538,)))
        )
    plane.release([ref.lease])
    with pytest.raises(TensorLost, match="its lease ended"):
        await fetched_by(plane, ref)


@pytest.mark.parametrize("tensor", [LARGE, HUGE])
async def test_one_changed_byte_is_noticed(
    tensor: Tensor, new_plane: NewPlane, tmp_path: Path
) -> None:
    ref = await published(new_plane(slab_bytes=16 * MIB), tensor)
    with (tmp_path / in_slab(ref).segment).open("r+b") as segment:
        segment.seek(ref.location.offset + ref.length - 1)
        last = segment.read(1)[0]
        segment.seek(-1, 1)
        segment.write(bytes([last ^ 1]))

    with pytest.raises(TensorLost, match=f"its bytes changed.*{ref.checksum:016x}"):
        await fetched_by(new_plane(), ref)


async def test_a_reference_of_an_earlier_life_is_lost(new_plane: NewPlane) -> None:
    ref = replace(await published(new_plane()), incarnation=new_incarnation())

    with pytest.raises(TensorLost, match="the producer is gone"):
        await fetched_by(new_plane(), ref)


async def test_a_reference_to_another_host_is_lost(new_plane: NewPlane) -> None:
    ref = await published(new_plane())

    with pytest.raises(TensorLost, match=f"on host {this_host()}, this is elsewhere"):
        await fetched_by(new_plane(host=HostId("elsewhere")), ref)


async def test_a_reference_whose_header_disagrees_is_lost(new_plane: NewPlane) -> None:
    ref = await published(new_plane())

    with pytest.raises(TensorLost, match="header stands for 4 bytes, the reference 65537"):
        await fetched_by(new_plane(), replace(ref, header=replace(ref.header, shape=(4,))))


async def test_a_released_tensor_is_lost_and_its_room_is_free(new_plane: NewPlane) -> None:
    producer, consumer = new_plane(), new_plane()
    ref = await published(producer)
    assert producer.statistics().leases == 1
    assert producer.statistics().used_bytes > ref.length

    assert producer.release([ref.lease]) == 1
    assert producer.release([ref.lease, LeaseId(99)]) == 0

    assert idle(producer)
    with pytest.raises(TensorLost, match="its lease ended"):
        await fetched_by(consumer, ref)


async def test_an_owner_takes_its_tensors_along(new_plane: NewPlane) -> None:
    plane = new_plane()
    mine = [await published(plane, owner="mine") for _ in range(3)]
    other = await published(plane, owner="other")

    assert plane.release_owner("mine") == 3
    assert plane.release_owner("mine") == 0

    assert (await fetched_by(plane, other)).data == LARGE.data
    for ref in mine:
        with pytest.raises(TensorLost):
            await fetched_by(plane, ref)


async def test_a_tensor_larger_than_the_slab_names_the_setting(new_plane: NewPlane) -> None:
    with pytest.raises(SetupError, match=r"65537 bytes.*slab of 65536: raise `limits\.slabBytes`"):
        await new_plane(slab_bytes=INLINE_LIMIT).publish(LARGE, owner="a", deadline=soon())


async def test_publishers_wait_for_room_in_the_order_they_came(new_plane: NewPlane) -> None:
    plane = new_plane(slab_bytes=MIB)
    half, most = random_tensor(MIB // 2 - 64), random_tensor(MIB * 3 // 4)
    first, second = [await published(plane, half) for _ in range(2)]
    done: list[str] = []

    async def publish(name: str, tensor: Tensor) -> TensorRef:
        ref = await published(plane, tensor)
        done.append(name)
        return ref

    async with asyncio.TaskGroup() as group:
        large = group.create_task(publish("large", most))
        await waiting(plane, 1)
        small = group.create_task(publish("small", LARGE))
        await waiting(plane, 2)

        plane.release([first.lease])
        await asyncio.sleep(0)
        assert done == [], "the small one would fit and must not overtake"
        plane.release([second.lease])

    assert done == ["large", "small"]
    assert (await fetched_by(plane, large.result())).data == most.data
    assert (await fetched_by(plane, small.result())).data == LARGE.data


async def test_waiting_for_room_ends_with_the_deadline(new_plane: NewPlane) -> None:
    plane = new_plane(slab_bytes=MIB)
    ref = await published(plane, random_tensor(MIB - 64))

    for seconds in (0.02, -1):
        with pytest.raises(DeadlineExceeded, match=r"slab of 1048576 .*`limits\.slabBytes`"):
            await plane.publish(LARGE, owner="a", deadline=Deadline.after(seconds))

    plane.release([ref.lease])
    assert idle(plane)


async def test_a_cancelled_wait_leaves_nothing_and_lets_the_next_one_pass(
    new_plane: NewPlane,
) -> None:
    plane = new_plane(slab_bytes=MIB)
    ref = await published(plane, random_tensor(MIB // 2))

    async with asyncio.TaskGroup() as group:
        large = group.create_task(published(plane, random_tensor(MIB - 64)))
        await waiting(plane, 1)
        small = group.create_task(published(plane))
        await waiting(plane, 2)
        large.cancel()

    plane.release([ref.lease, small.result().lease])
    assert idle(plane)


async def test_a_wait_that_is_cancelled_just_when_it_was_granted_gives_the_room_back(
    new_plane: NewPlane,
) -> None:
    plane = new_plane(slab_bytes=MIB)
    ref = await published(plane, random_tensor(MIB - 64))

    async with asyncio.TaskGroup() as group:
        task = group.create_task(published(plane))
        await waiting(plane, 1)
        plane.release([ref.lease])
        assert plane.statistics().leases == 1
        task.cancel()

    assert task.cancelled()
    assert idle(plane)


async def test_an_owner_that_is_released_waits_no_more(new_plane: NewPlane) -> None:
    plane = new_plane(slab_bytes=MIB)
    ref = await published(plane, random_tensor(MIB - 64))

    async def refused() -> None:
        with pytest.raises(RequestCancelled):
            await published(plane, owner="gone")

    async with asyncio.TaskGroup() as group:
        group.create_task(refused())
        await waiting(plane, 1)
        plane.release_owner("gone")
        assert plane.statistics().waiting == 0

        group.create_task(refused())
        await waiting(plane, 1)
        plane.release([ref.lease])
        plane.release_owner("gone")

    assert idle(plane)


@pytest.mark.parametrize("cause", ["release", "deadline", "cancel", "close"])
async def test_a_copy_whose_tensor_is_unwanted_stops_and_leaves_nothing(
    cause: str, new_plane: NewPlane
) -> None:
    plane = new_plane(slab_bytes=64 * MIB)
    tensor = random_tensor(32 * MIB)
    errors = {
        "release": RequestCancelled,
        "deadline": DeadlineExceeded,
        "cancel": asyncio.CancelledError,
        "close": Draining,
    }
    seconds = 0.001 if cause == "deadline" else 60

    async def publish() -> None:
        with pytest.raises(errors[cause]):
            await plane.publish(tensor, owner="a", deadline=Deadline.after(seconds))

    async with asyncio.TaskGroup() as group:
        task = group.create_task(publish())
        await asyncio.sleep(0)
        match cause:
            case "release":
                assert plane.release_owner("a") == 1
                assert plane.statistics().used_bytes > tensor.header.length
            case "cancel":
                task.cancel()
            case "close":
                plane.close()

    assert idle(plane)


async def test_the_loop_has_its_turns_while_a_large_tensor_is_copied(new_plane: NewPlane) -> None:
    plane = new_plane(slab_bytes=16 * MIB)
    turns = 0
    task = asyncio.ensure_future(published(plane, HUGE))

    while not task.done():
        turns += 1
        await asyncio.sleep(0)

    assert turns >= 3
    assert (await fetched_by(new_plane(), task.result())).data == HUGE.data


async def test_a_lease_ends_with_its_deadline_and_makes_room(new_plane: NewPlane) -> None:
    producer, consumer = new_plane(slab_bytes=MIB), new_plane()
    tensor = random_tensor(MIB - 64)
    late = await producer.publish(LARGE, owner="late", deadline=soon())
    ref = await producer.publish(
        random_tensor(MIB // 2), owner="early", deadline=Deadline.after(0.02)
    )
    assert isinstance(late, TensorRef)
    assert isinstance(ref, TensorRef)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(published(producer, random_tensor(MIB * 3 // 4)))
        await waiting(producer, 1)

    with pytest.raises(TensorLost):
        await fetched_by(consumer, ref)
    assert (await fetched_by(consumer, late)).data == LARGE.data
    producer.release([task.result().lease, late.lease])
    assert idle(producer)
    assert (await published(producer, tensor)).length == tensor.header.length


async def test_closing_ends_everything_and_says_so(new_plane: NewPlane, tmp_path: Path) -> None:
    plane = new_plane(slab_bytes=MIB)
    ref = await published(plane, random_tensor(MIB - 64))
    view = (await fetched_by(plane, ref)).data

    async def refused() -> None:
        with pytest.raises(Draining):
            await published(plane)

    async with asyncio.TaskGroup() as group:
        group.create_task(refused())
        await waiting(plane, 1)
        plane.close()
        plane.close()

    await refused()
    with pytest.raises(Draining):
        await fetched_by(plane, ref)
    assert idle(plane)
    assert segments(tmp_path) == set()
    assert view == random_tensor(MIB - 64).data, "a view stays valid memory"


async def test_a_closed_plane_still_hands_on_what_is_inline(new_plane: NewPlane) -> None:
    plane = new_plane()
    plane.close()
    tensor = random_tensor(10)

    assert (
        await fetched_by(plane, await plane.publish(tensor, owner="a", deadline=soon())) is tensor
    )


@pytest.mark.parametrize("length", [INLINE_LIMIT + 1, MIB, 9 * MIB])
async def test_a_tensor_crosses_between_two_processes(
    length: int, new_plane: NewPlane, new_producer: Callable[[], Producer]
) -> None:
    producer, consumer = new_producer(), new_plane()
    ref = producer.publish(length, seed=length)

    assert (await fetched_by(consumer, ref)).data == random_tensor(length, length).data

    assert producer.ask("release") == "1"
    with pytest.raises(TensorLost, match="its lease ended"):
        await fetched_by(consumer, ref)
    assert producer.ask("close") == "closed"
    with pytest.raises(TensorLost, match="belongs to nobody now"):
        await fetched_by(consumer, ref)


async def test_a_killed_producer_takes_nobody_along(
    new_plane: NewPlane, new_producer: Callable[[], Producer]
) -> None:
    producer, consumer = new_producer(), new_plane()
    ref = producer.publish(MIB, seed=1)
    fetched = await fetched_by(consumer, ref)

    producer.kill()

    assert fetched.data == random_tensor(MIB, 1).data
    successor = new_producer().publish(MIB, seed=2)
    assert (await fetched_by(consumer, successor)).data == random_tensor(MIB, 2).data


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


async def churn(producer: TensorPlane, consumer: TensorPlane, chance: random.Random) -> int:
    """A thousand requests, eight at a time, some cancelled on their way; how many."""
    places = asyncio.Semaphore(8)
    tensors = [random_tensor(chance.randint(INLINE_LIMIT + 1, MIB // 2)) for _ in range(8)]

    async def request(number: int) -> None:
        async with places:
            tensor = tensors[number % 8]
            try:
                ref = await producer.publish(tensor, owner=number, deadline=soon())
                await asyncio.sleep(0)
                fetched = await fetched_by(consumer, ref)
                assert len(fetched.data) == tensor.header.length
                await asyncio.sleep(0)
            finally:
                producer.release_owner(number)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(request(number)) for number in range(1000)]
        for task in chance.sample(tasks, 333):
            if chance.random() < 0.5:
                await asyncio.sleep(0)
            task.cancel()
    return sum(task.cancelled() for task in tasks)


async def test_ten_thousand_requests_with_random_cancellation_leave_nothing() -> None:
    chance = random.Random(7)  # noqa: S311 - reproducible
    before = segments(SHARED_MEMORY_FOLDER)
    producer, consumer = (
        TensorPlane(incarnation=new_incarnation(), host=this_host(), slab_bytes=MIB)
        for _ in range(2)
    )

    await churn(producer, consumer, chance)
    gc.collect()
    memory = resident_bytes()
    for _ in range(9):
        assert await churn(producer, consumer, chance) > 100
        assert idle(producer)
    gc.collect()

    assert resident_bytes() - memory < 4 * MIB
    assert len(segments(SHARED_MEMORY_FOLDER) - before) == 1, "one segment, and one only"
    producer.close()
    consumer.close()
    assert segments(SHARED_MEMORY_FOLDER) == before
