"""Transfers that are interrupted: each ends in an error of ours, soon, and leaves nothing behind.

"Soon" is a second after a loss and three for a peer that is frozen; the limits here are twice that, for
machines that are busy.
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

from fakes.tensor_process import MIB, TensorProcess, bytes_of
from fakes.transfers import churn, nothing_is_held, read, under_way
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import DeadlineExceeded, Draining, OmnistageError, TensorLost
from omnistage_common.ids import new_incarnation, this_host
from omnistage_common.payloads import INLINE_LIMIT
from omnistage_common.processes import resident_bytes
from omnistage_common.tensors import TensorPlane, TransportKind

SHARED_MEMORY = TransportKind.SHARED_MEMORY
TCP = TransportKind.TCP
STREAM = TransportKind.STREAM
EACH = pytest.mark.parametrize("kind", [SHARED_MEMORY, TCP, STREAM])
NETWORK = pytest.mark.parametrize("kind", [TCP, STREAM])
HUGE = 96 * MIB
"""Takes tens of milliseconds: there is a middle to interrupt."""
LOST = 2.0
FROZEN = 6.0
"""Seconds."""

StartProcess = Callable[..., TensorProcess]


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[StartProcess]:
    """Starts processes that end with the test."""
    started: list[TensorProcess] = []

    def start(**arguments: object) -> TensorProcess:
        started.append(TensorProcess(tmp_path, **arguments))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for process in started:
        process.kill()


@asynccontextmanager
async def consumer_by(kind: TransportKind, directory: Path) -> AsyncIterator[TensorPlane]:
    """A plane that reads this way, or as a stream where that fails."""
    plane = TensorPlane(
        incarnation=new_incarnation(),
        host=this_host(),
        slab_bytes=HUGE + 64 * MIB,
        directory=directory,
        transports=(kind,) if kind is SHARED_MEMORY else tuple(dict.fromkeys((kind, STREAM))),
    )
    yield plane
    plane.close()


async def met(plane: TensorPlane, producer: TensorProcess) -> None:
    """Makes them agree on a way."""
    await read(plane, producer.publish(MIB, 1), "met")
    plane.release_owner("met")


@NETWORK
@pytest.mark.parametrize("moment", ["before", "midway"])
async def test_a_producer_that_is_killed_loses_its_tensors_at_once_and_its_successor_is_read(
    kind: TransportKind, moment: str, start_process: StartProcess, tmp_path: Path
) -> None:
    producer = start_process()
    async with consumer_by(kind, tmp_path) as consumer:
        await met(consumer, producer)
        ref = producer.publish(HUGE, 1)
        if moment == "before":
            producer.kill()
        task = asyncio.create_task(read(consumer, ref))
        if moment == "midway":
            await under_way(consumer, task)
            await asyncio.to_thread(producer.kill)

        killed = time.monotonic()
        with pytest.raises(TensorLost):
            await task
        assert time.monotonic() - killed < LOST

        await nothing_is_held(consumer)
        successor = start_process(port=producer.port)
        tensor = await read(consumer, successor.publish(MIB, 2))
        assert tensor.data == bytes_of(MIB, 2)


@NETWORK
@pytest.mark.parametrize("moment", ["before", "midway"])
async def test_a_producer_that_freezes_costs_three_seconds_and_is_read_again_when_it_goes_on(
    kind: TransportKind, moment: str, start_process: StartProcess, tmp_path: Path
) -> None:
    producer = start_process()
    async with consumer_by(kind, tmp_path) as consumer:
        await met(consumer, producer)
        ref = producer.publish(HUGE, 1)
        if moment == "before":
            producer.freeze()
        task = asyncio.create_task(read(consumer, ref))
        if moment == "midway":
            await under_way(consumer, task)
            producer.freeze()

        frozen = time.monotonic()
        with pytest.raises(TensorLost):
            await task
        assert time.monotonic() - frozen < FROZEN

        producer.thaw()
        await nothing_is_held(consumer)
        assert producer.release() == 2
        tensor = await read(consumer, producer.publish(MIB, 2))
        assert tensor.data == bytes_of(MIB, 2)


async def test_a_producer_that_never_spoke_and_is_frozen_costs_three_seconds(
    start_process: StartProcess, tmp_path: Path
) -> None:
    producer = start_process()
    ref = producer.publish(MIB, 1)
    producer.freeze()
    async with consumer_by(TCP, tmp_path) as consumer:
        asked = time.monotonic()
        with pytest.raises(TensorLost, match="does not answer"):
            await read(consumer, ref)
        assert time.monotonic() - asked < FROZEN
        producer.thaw()


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_shared_memory_outlives_what_happens_to_its_producer(
    fault: str, start_process: StartProcess, tmp_path: Path
) -> None:
    producer = start_process()
    async with consumer_by(SHARED_MEMORY, tmp_path) as consumer:
        ref = producer.publish(9 * MIB, 1)
        view = (await read(consumer, ref)).data
        getattr(producer, fault)()

        assert view == bytes_of(9 * MIB, 1)
        assert (await read(consumer, ref)).data == bytes_of(9 * MIB, 1)
        if fault == "freeze":
            producer.thaw()
            producer.release()
            with pytest.raises(TensorLost, match="its lease ended"):
                await read(consumer, ref)


@EACH
@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_a_consumer_that_is_lost_costs_its_producer_nothing_but_the_lease(
    kind: TransportKind, fault: str, start_process: StartProcess
) -> None:
    producer = start_process()
    consumer = start_process(transports=(kind,))
    consumer.start_fetch(producer.publish(MIB, 1))
    assert consumer.fetched().seed == 1
    consumer.start_fetch(producer.publish(HUGE, 2))
    getattr(consumer, fault)()

    other = start_process(transports=(kind,))
    other.start_fetch(producer.publish(MIB, 3))
    assert other.fetched().seed == 3
    assert producer.holds().leases == 3
    assert producer.release() == 3
    held = producer.holds()
    assert (held.leases, held.used_bytes, held.settling) == (0, 0, 0)
    other.start_fetch(producer.publish(MIB, 4))
    assert other.fetched().seed == 4


@NETWORK
async def test_a_lease_that_ends_midway_is_noticed(
    kind: TransportKind, start_process: StartProcess, tmp_path: Path
) -> None:
    producer = start_process()
    async with consumer_by(kind, tmp_path) as consumer:
        await met(consumer, producer)
        ref = producer.publish(HUGE, 1)
        task = asyncio.create_task(read(consumer, ref))
        await under_way(consumer, task)
        producer.release()
        producer.publish(HUGE, 2)

        with suppress(TensorLost):
            assert (await task).data == bytes_of(HUGE, 1), "it was faster, and is whole"
        consumer.release_owner("reader")
        await nothing_is_held(consumer)


@NETWORK
@pytest.mark.parametrize("cause", ["cancel", "release", "close", "deadline"])
async def test_a_fetch_that_is_not_wanted_any_more_gives_its_room_back_when_nobody_writes(
    kind: TransportKind, cause: str, start_process: StartProcess, tmp_path: Path
) -> None:
    producer = start_process()
    async with consumer_by(kind, tmp_path) as consumer:
        await met(consumer, producer)
        ref = producer.publish(HUGE, 1)
        seconds = 0.02 if cause == "deadline" else 60
        task = asyncio.create_task(
            consumer.fetch(ref, owner="reader", deadline=Deadline.after(seconds))
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
            assert (await read(consumer, ref)).data == bytes_of(HUGE, 1)


def files_in(folder: Path) -> int:
    return len(list(folder.iterdir()))


def open_files() -> int:
    return files_in(Path("/proc/self/fd"))


@pytest.mark.parametrize(("kind", "rounds"), [(SHARED_MEMORY, 40), (TCP, 12), (STREAM, 8)])
async def test_thousands_of_transfers_with_random_cancellation_leave_everything_flat(
    kind: TransportKind, rounds: int, start_process: StartProcess, tmp_path: Path
) -> None:
    """10,000 by shared memory, 3,000 by TCP and 2,000 as streams, which are slower."""
    chance = random.Random(7)  # noqa: S311 - reproducible
    producer = start_process()
    refs = [producer.publish(chance.randint(INLINE_LIMIT + 1, MIB // 2), 1) for _ in range(8)]
    segments = files_in(tmp_path)
    async with consumer_by(kind, tmp_path) as consumer:
        for _ in range(2):
            await churn(consumer, refs, chance, 250)
        gc.collect()
        before = resident_bytes(), resident_bytes(producer.pid), open_files()
        threads = threading.active_count()

        for _ in range(rounds):
            assert await churn(consumer, refs, chance, 250) > 20
        await nothing_is_held(consumer)
        gc.collect()

        assert resident_bytes() - before[0] < 8 * MIB
        assert resident_bytes(producer.pid) - before[1] < 8 * MIB
        assert abs(open_files() - before[2]) <= 4, "connections that come and go"
        assert threading.active_count() <= threads
        assert files_in(tmp_path) == segments
        assert producer.release() == 8
        assert producer.holds().used_bytes == 0


async def test_a_process_that_met_peers_by_every_way_ends_by_itself(
    start_process: StartProcess,
) -> None:
    producer = start_process()
    for kind in (SHARED_MEMORY, TCP, STREAM):
        consumer = start_process(transports=(kind,))
        consumer.start_fetch(producer.publish(MIB, 1))
        assert consumer.fetched().seed == 1
        assert await asyncio.to_thread(consumer.end) == 0
    assert await asyncio.to_thread(producer.end) == 0
