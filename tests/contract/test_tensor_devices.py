"""Tensors on the devices of two processes: every way between them, and what interrupts one.

The device is a CPU, whose memory Mooncake reads over TCP as it would read a GPU's over RDMA. "Soon" is as
in `test_tensor_faults`.
"""

import asyncio
import gc
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.device_tensors import (
    WatchedRegion,
    bytes_on_device,
    made_on_device,
    plane_with_door,
    region,
)
from fakes.tensor_process import MIB, TensorProcess, bytes_of, tensor_of
from fakes.transfers import churn, nothing_is_held, read, read_to_device, under_way
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import DeadlineExceeded, Draining, OmnistageError, TensorLost
from omnistage_common.ids import LeaseId, TensorToken, new_incarnation, this_host
from omnistage_common.payloads import INLINE_LIMIT, DeviceTensor, Tensor, TensorRef
from omnistage_common.processes import resident_bytes
from omnistage_common.tensors import EVERY_TRANSPORT, TensorPlane, TransportKind

SHARED_MEMORY = TransportKind.SHARED_MEMORY
TCP = TransportKind.TCP
STREAM = TransportKind.STREAM
WAYS = pytest.mark.parametrize("kind", [TCP, STREAM])
LANDINGS = pytest.mark.parametrize("landing", ["host", "device"])
HUGE = 96 * MIB
"""Takes tens of milliseconds: there is a middle to interrupt."""
DEVICE = HUGE + 64 * MIB
LOST = 2.0
FROZEN = 6.0
"""Seconds."""

StartProcess = Callable[..., TensorProcess]


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[StartProcess]:
    """Starts processes with a device, that end with the test."""
    started: list[TensorProcess] = []

    def start(**arguments: object) -> TensorProcess:
        arguments.setdefault("device_bytes", DEVICE)
        started.append(TensorProcess(tmp_path, **arguments))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TensorProcess]:
    """A process that several tests read from, and none harms."""
    process = TensorProcess(tmp_path_factory.mktemp("segments"), device_bytes=64 * MIB)
    yield process
    process.kill()


@pytest.fixture
def producer(living: TensorProcess) -> Iterator[TensorProcess]:
    """The process, without leases of other tests."""
    yield living
    living.release()


@asynccontextmanager
async def plane_by(
    *kinds: TransportKind, directory: Path, received: WatchedRegion | None = None
) -> AsyncIterator[TensorPlane]:
    """A process with a device of its own, that reads by these ways."""
    plane = TensorPlane(
        incarnation=new_incarnation(),
        host=this_host(),
        slab_bytes=DEVICE,
        directory=directory,
        transports=kinds,
    )
    plane.attach(made=region(MIB), received=received or region(DEVICE))
    yield plane
    plane.close()


async def landed(plane: TensorPlane, ref: TensorRef, landing: str) -> bytes:
    """The bytes of a tensor that was fetched to the host or to the device."""
    if landing == "device":
        return bytes_on_device(await read_to_device(plane, ref))
    return bytes((await read(plane, ref)).data)


@WAYS
@LANDINGS
@pytest.mark.parametrize("length", [INLINE_LIMIT + 1, MIB, 9 * MIB])
async def test_every_way_brings_what_was_made_to_either_landing(
    kind: TransportKind, landing: str, length: int, producer: TensorProcess, tmp_path: Path
) -> None:
    async with plane_by(kind, directory=tmp_path) as consumer:
        for seed in (1, 2):
            ref = producer.publish(length, seed, on_device=True)
            assert await landed(consumer, ref, landing) == bytes_of(length, seed)

        (peer,) = consumer.peers()
        assert (peer.kind, peer.on_device, peer.bytes) == (kind, True, 2 * length)
        now = consumer.statistics()
        expected = (2, 0) if landing == "host" else (0, 2)
        assert (now.received, now.device_leases) == expected
        assert consumer.release_owner("reader") == 2
        await nothing_is_held(consumer)


@LANDINGS
@pytest.mark.parametrize("kind", [SHARED_MEMORY, TCP, STREAM])
async def test_what_is_in_a_slab_lands_on_the_device_unless_it_can_be_mapped(
    kind: TransportKind, landing: str, start_process: StartProcess, tmp_path: Path
) -> None:
    producer = start_process(device_bytes=0)
    async with plane_by(kind, directory=tmp_path) as consumer:
        ref = producer.publish(9 * MIB, 1)
        if kind is SHARED_MEMORY:
            tensor = await read_to_device(consumer, ref)
            assert isinstance(tensor, Tensor)
            assert tensor.data == bytes_of(9 * MIB, 1)
        else:
            assert await landed(consumer, ref, landing) == bytes_of(9 * MIB, 1)


async def test_slab_and_device_of_one_producer_are_read_by_different_ways(
    start_process: StartProcess, tmp_path: Path
) -> None:
    producer = start_process()
    async with plane_by(*EVERY_TRANSPORT, directory=tmp_path) as consumer:
        for on_device in (False, True, False, True):
            ref = producer.publish(MIB, 3, on_device=on_device)
            assert (await read(consumer, ref)).data == bytes_of(MIB, 3)

        ways = {peer.on_device: peer for peer in consumer.peers()}
        assert (ways[False].kind, ways[False].tensors) == (SHARED_MEMORY, 2)
        assert (ways[True].kind, ways[True].tensors) == (TCP, 2)
        assert ways[False].fallback == ""
        assert "shared_memory" not in ways[True].fallback


async def test_who_may_only_map_is_told_that_a_device_cannot_be(
    producer: TensorProcess, tmp_path: Path
) -> None:
    ref = producer.publish(MIB, 1, on_device=True)
    async with plane_by(SHARED_MEMORY, directory=tmp_path) as consumer:
        with pytest.raises(TensorLost, match="on a device, which nobody can map"):
            await read(consumer, ref)


async def test_a_device_that_only_rdma_reaches_is_read_as_a_stream_and_receives_none_by_tcp(
    producer: TensorProcess, tmp_path: Path
) -> None:
    unreachable = WatchedRegion(4 * MIB, on_host=False)
    async with plane_by(TCP, STREAM, directory=tmp_path, received=unreachable) as consumer:
        tensor = await read_to_device(consumer, producer.publish(MIB, 1, on_device=True))
        assert isinstance(tensor, Tensor), "it landed on the host"
        assert tensor.data == bytes_of(MIB, 1)
    async with plane_by(STREAM, directory=tmp_path, received=unreachable) as consumer:
        ref = producer.publish(MIB, 2, on_device=True)
        assert await landed(consumer, ref, "device") == bytes_of(MIB, 2)


@WAYS
@LANDINGS
async def test_a_guessed_token_a_stale_lease_and_an_altered_header_are_refused(
    kind: TransportKind, landing: str, producer: TensorProcess, tmp_path: Path
) -> None:
    async with plane_by(kind, directory=tmp_path) as consumer:
        ref = producer.publish(MIB, 1, on_device=True)
        guessed = replace(ref, token=TensorToken("0" * 32))
        unknown = replace(ref, lease=LeaseId(99))
        relabelled = replace(ref, header=replace(ref.header, rate_hz=8000))

        for altered in (guessed, unknown, relabelled):
            with pytest.raises(TensorLost, match=r"token|lease ended|bytes changed"):
                await landed(consumer, altered, landing)
        assert await landed(consumer, ref, landing) == bytes_of(MIB, 1)

        producer.release()
        with pytest.raises(TensorLost, match="its lease ended"):
            await landed(consumer, ref, landing)
        consumer.release_owner("reader")
        await nothing_is_held(consumer)


@WAYS
@LANDINGS
async def test_bytes_that_changed_on_the_device_are_noticed_where_they_are_sampled(
    kind: TransportKind, landing: str, tmp_path: Path
) -> None:
    memory = WatchedRegion(16 * MIB)
    async with (
        plane_with_door(tmp_path, memory) as producer,
        plane_by(kind, directory=tmp_path) as consumer,
    ):
        ref = await made_on_device(producer, tensor_of(9 * MIB, 1))
        memory.write(ref.location.offset + 9 * MIB - 2, b"?!")

        with pytest.raises(TensorLost, match="its bytes changed"):
            await landed(consumer, ref, landing)
        await nothing_is_held(consumer)


async def test_a_lease_that_ends_after_the_stamp_came_is_noticed_by_a_second_look_at_it(
    tmp_path: Path,
) -> None:
    """The stamp came with the bytes and was right; bytes of another tensor may be among them."""
    room = WatchedRegion(DEVICE)
    async with (
        plane_with_door(tmp_path, region(16 * MIB)) as producer,
        plane_by(TCP, directory=tmp_path, received=room) as consumer,
    ):
        ref = await made_on_device(producer, tensor_of(9 * MIB, 1))
        assert await landed(consumer, ref, "device") == bytes_of(9 * MIB, 1)
        room.reads.clear()

        def release(_: int) -> None:
            producer.release_owner("a")

        room.on_read = release

        with pytest.raises(TensorLost, match="its lease ended"):
            await landed(consumer, ref, "device")

        assert room.reads == [64, 64], "nothing else was looked at"
        consumer.release_owner("reader")
        await nothing_is_held(consumer)


@WAYS
async def test_an_earlier_life_at_the_same_address_is_stale_and_the_next_one_is_read(
    kind: TransportKind, start_process: StartProcess, tmp_path: Path
) -> None:
    async with plane_by(kind, directory=tmp_path) as consumer:
        first = start_process(device_bytes=4 * MIB)
        stale = first.publish(MIB, 1, on_device=True)
        await read(consumer, stale)
        first.kill()
        second = start_process(port=first.port, device_bytes=4 * MIB)
        fresh = second.publish(MIB, 2, on_device=True)

        with pytest.raises(TensorLost):
            await read(consumer, stale)
        assert (await read(consumer, fresh)).data == bytes_of(MIB, 2)
        with pytest.raises(TensorLost, match="is gone"):
            await read(consumer, stale)


async def met(plane: TensorPlane, producer: TensorProcess) -> None:
    """Makes them agree on a way."""
    await read_to_device(plane, producer.publish(MIB, 1, on_device=True), "met")
    plane.release_owner("met")


@WAYS
@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_a_producer_that_is_lost_midway_loses_its_tensors_soon_and_is_read_again_later(
    kind: TransportKind, fault: str, start_process: StartProcess, tmp_path: Path
) -> None:
    producer = start_process()
    async with plane_by(*dict.fromkeys((kind, STREAM)), directory=tmp_path) as consumer:
        await met(consumer, producer)
        ref = producer.publish(HUGE, 1, on_device=True)
        task = asyncio.create_task(read_to_device(consumer, ref))
        await under_way(consumer, task)
        await asyncio.to_thread(getattr(producer, fault))

        lost = time.monotonic()
        with pytest.raises(TensorLost):
            await task
        assert time.monotonic() - lost < (LOST if fault == "kill" else FROZEN)

        if fault == "freeze":
            producer.thaw()
            await nothing_is_held(consumer)
            assert producer.release() == 2
            later = producer
        else:
            await nothing_is_held(consumer)
            later = start_process(port=producer.port)
        ref = later.publish(MIB, 2, on_device=True)
        assert await landed(consumer, ref, "device") == bytes_of(MIB, 2)


@WAYS
@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_a_consumer_that_is_lost_costs_its_producer_nothing_but_the_lease(
    kind: TransportKind, fault: str, start_process: StartProcess
) -> None:
    producer = start_process()
    consumer = start_process(transports=(kind,))
    consumer.start_fetch(producer.publish(MIB, 1, on_device=True), to_device=True)
    assert consumer.fetched().seed == 1
    consumer.start_fetch(producer.publish(HUGE, 2, on_device=True), to_device=True)
    getattr(consumer, fault)()

    other = start_process(transports=(kind,), device_bytes=4 * MIB)
    other.start_fetch(producer.publish(MIB, 3, on_device=True), to_device=True)
    assert other.fetched().seed == 3
    assert producer.holds().device_leases == 3
    assert producer.release() == 3
    held = producer.holds()
    assert (held.leases, held.device_used_bytes, held.settling) == (0, 0, 0)


@WAYS
@pytest.mark.parametrize("cause", ["cancel", "release", "close", "deadline"])
async def test_a_fetch_to_the_device_that_is_not_wanted_any_more_gives_its_room_back(
    kind: TransportKind, cause: str, start_process: StartProcess, tmp_path: Path
) -> None:
    producer = start_process()
    async with plane_by(kind, directory=tmp_path) as consumer:
        await met(consumer, producer)
        ref = producer.publish(HUGE, 1, on_device=True)
        seconds = 0.02 if cause == "deadline" else 60
        task = asyncio.create_task(
            consumer.fetch_to_device(ref, owner="reader", deadline=Deadline.after(seconds))
        )
        await under_way(consumer, task)
        match cause:
            case "cancel":
                task.cancel()
            case "release":
                consumer.release_owner("reader")
            case "close":
                consumer.close()

        with pytest.raises((asyncio.CancelledError, OmnistageError)) as ended:
            await task
        expected = {"close": Draining, "deadline": DeadlineExceeded}
        assert isinstance(ended.value, expected.get(cause, BaseException))
        await nothing_is_held(consumer)
        if cause != "close":
            assert await landed(consumer, ref, "device") == bytes_of(HUGE, 1)


@WAYS
async def test_a_lease_that_ends_midway_never_brings_bytes_of_another(
    kind: TransportKind, start_process: StartProcess, tmp_path: Path
) -> None:
    producer = start_process()
    async with plane_by(kind, directory=tmp_path) as consumer:
        await met(consumer, producer)
        ref = producer.publish(HUGE, 1, on_device=True)
        task = asyncio.create_task(read_to_device(consumer, ref))
        await under_way(consumer, task)
        producer.release()
        producer.publish(HUGE, 2, on_device=True)

        with suppress(TensorLost):
            assert bytes_on_device(await task) == bytes_of(HUGE, 1), "it was faster, and is whole"
        consumer.release_owner("reader")
        await nothing_is_held(consumer)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@WAYS
async def test_a_thousand_transfers_with_random_cancellation_leave_everything_flat(
    kind: TransportKind, start_process: StartProcess, tmp_path: Path
) -> None:
    chance = random.Random(7)  # noqa: S311 - reproducible
    producer = start_process()
    lengths = [chance.randint(INLINE_LIMIT + 1, MIB // 2) for _ in range(8)]
    refs = [producer.publish(length, 1, on_device=True) for length in lengths]
    async with plane_by(kind, directory=tmp_path) as consumer:
        for _ in range(2):
            await churn(consumer, refs, chance, 250, read_to_device)
        gc.collect()
        before = resident_bytes(), resident_bytes(producer.pid), open_files()
        threads = threading.active_count()

        for _ in range(4):
            assert await churn(consumer, refs, chance, 250, read_to_device) > 20
        await nothing_is_held(consumer)
        gc.collect()

        assert resident_bytes() - before[0] < 8 * MIB
        assert resident_bytes(producer.pid) - before[1] < 8 * MIB
        assert abs(open_files() - before[2]) <= 4, "connections that come and go"
        assert threading.active_count() <= threads
        assert producer.release() == 8
        assert producer.holds().device_used_bytes == 0


async def test_what_landed_on_the_device_is_bounded_and_waits(
    producer: TensorProcess, tmp_path: Path
) -> None:
    room = WatchedRegion(3 * MIB)
    async with plane_by(TCP, directory=tmp_path, received=room) as consumer:
        first, second = (producer.publish(2 * MIB, n, on_device=True) for n in (1, 2))
        kept = await read_to_device(consumer, first, "first")
        assert isinstance(kept, DeviceTensor)

        with pytest.raises(DeadlineExceeded, match=r"limits\.deviceSlabBytes"):
            await consumer.fetch_to_device(second, owner="second", deadline=Deadline.after(0.05))
        consumer.release_owner("first")
        assert await landed(consumer, second, "device") == bytes_of(2 * MIB, 2)
