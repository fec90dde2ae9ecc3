"""The ways between two processes: each brings what was published, and the best is found by itself."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.tensor_process import MIB, TensorProcess, bytes_of
from fakes.tensor_producer import in_slab
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import DeadlineExceeded, SetupError, TensorLost
from omnistage_common.ids import HostId, LeaseId, TensorToken, new_incarnation, this_host
from omnistage_common.payloads import INLINE_LIMIT, Tensor, TensorRef
from omnistage_common.tensors import TensorPlane, TransportKind

SHARED_MEMORY = TransportKind.SHARED_MEMORY
RDMA = TransportKind.RDMA
TCP = TransportKind.TCP
STREAM = TransportKind.STREAM
EACH = pytest.mark.parametrize("kind", [SHARED_MEMORY, TCP, STREAM])
NETWORK = pytest.mark.parametrize("kind", [TCP, STREAM])

StartProcess = Callable[..., TensorProcess]
NewPlane = Callable[..., TensorPlane]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the segments of all processes are."""
    return tmp_path_factory.mktemp("segments")


@pytest.fixture(scope="module")
def living(folder: Path) -> Iterator[TensorProcess]:
    """A process that several tests read from, and none harms."""
    process = TensorProcess(folder)
    yield process
    process.kill()


@pytest.fixture
def producer(living: TensorProcess) -> Iterator[TensorProcess]:
    """The process, without leases of other tests."""
    yield living
    living.release()


@pytest.fixture
def start_process(folder: Path) -> Iterator[StartProcess]:
    """Starts processes that end with the test."""
    started: list[TensorProcess] = []

    def start(**arguments: object) -> TensorProcess:
        started.append(TensorProcess(folder, **arguments))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def new_plane(folder: Path) -> Iterator[NewPlane]:
    """Makes consumers that share a folder with the processes, unless told otherwise."""
    planes: list[TensorPlane] = []

    def make(
        *kinds: TransportKind,
        host: HostId | None = None,
        directory: Path | None = None,
        slab_bytes: int = 64 * MIB,
    ) -> TensorPlane:
        planes.append(
            TensorPlane(
                incarnation=new_incarnation(),
                host=host or this_host(),
                slab_bytes=slab_bytes,
                directory=directory or folder,
                **({"transports": kinds} if kinds else {}),  # type: ignore[arg-type]
            )
        )
        return planes[-1]

    yield make
    for plane in planes:
        plane.close()


async def read(plane: TensorPlane, ref: TensorRef, owner: str = "reader") -> Tensor:
    return await plane.fetch(ref, owner=owner, deadline=Deadline.after(30))


@EACH
@pytest.mark.parametrize("length", [INLINE_LIMIT + 1, MIB, 9 * MIB])
async def test_every_way_brings_what_was_published(
    kind: TransportKind, length: int, producer: TensorProcess, new_plane: NewPlane
) -> None:
    consumer = new_plane(kind)

    for seed in (1, 2):
        tensor = await read(consumer, producer.publish(length, seed))
        assert tensor.data == bytes_of(length, seed)
        assert isinstance(tensor.data, memoryview)
        assert tensor.data.readonly

    (peer,) = consumer.peers()
    assert (peer.kind, peer.tensors, peer.bytes) == (kind, 2, 2 * length)
    assert [(x.kind, x.tensors, x.lost) for x in consumer.counts()] == [(kind, 2, 0)]
    assert consumer.statistics().received == (0 if kind is SHARED_MEMORY else 2)
    consumer.release_owner("reader")
    assert consumer.statistics().used_bytes == 0


async def test_two_processes_of_a_host_share_memory_and_nothing_is_worse_than_hoped_for(
    producer: TensorProcess, new_plane: NewPlane
) -> None:
    consumer = new_plane()

    await read(consumer, producer.publish(MIB, 1))

    (peer,) = consumer.peers()
    assert (peer.kind, peer.fallback) == (SHARED_MEMORY, "")


async def test_containers_of_one_host_that_share_no_folder_are_found_out(
    producer: TensorProcess, new_plane: NewPlane, tmp_path: Path
) -> None:
    (tmp_path / "own").mkdir()
    consumer = new_plane(SHARED_MEMORY, TCP, STREAM, directory=tmp_path / "own")

    assert (await read(consumer, producer.publish(MIB, 1))).data == bytes_of(MIB, 1)

    (peer,) = consumer.peers()
    assert peer.kind is TCP
    assert "shared_memory: segment" in peer.fallback
    assert "has another folder there" in peer.fallback
    assert {x.kind: x.fallbacks for x in consumer.counts()} == {SHARED_MEMORY: 1, TCP: 0}


async def test_a_process_of_another_host_is_read_by_the_engine_and_the_missing_device_is_named(
    producer: TensorProcess, new_plane: NewPlane
) -> None:
    consumer = new_plane(host=HostId("elsewhere"))

    for seed in (1, 2):
        assert (await read(consumer, producer.publish(MIB, seed))).data == bytes_of(MIB, seed)

    (peer,) = consumer.peers()
    assert peer.kind is TCP
    assert peer.fallback.startswith("rdma: there is no RDMA device")
    assert {x.kind: x.fallbacks for x in consumer.counts()} == {RDMA: 1, TCP: 0}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("raise ImportError('libibverbs.so.1: cannot open')", "libibverbs.so.1: cannot open"),
        ("", "No module named"),
    ],
)
async def test_a_producer_whose_engine_cannot_be_loaded_is_read_as_a_stream(
    content: str, why: str, start_process: StartProcess, new_plane: NewPlane, tmp_path: Path
) -> None:
    package = tmp_path / "packages" / "mooncake"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(content)
    producer = start_process(import_path=package.parent)
    consumer = new_plane(TCP, STREAM)

    assert (await read(consumer, producer.publish(MIB, 1))).data == bytes_of(MIB, 1)

    (peer,) = consumer.peers()
    assert peer.kind is STREAM
    assert f"tcp: the producer says: Mooncake cannot be loaded: {why}" in peer.fallback


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (RDMA, r"no way to its producer \(allowed: rdma\): there is no RDMA device"),
        (SHARED_MEMORY, r"\(allowed: shared_memory\): it is on host"),
    ],
)
async def test_what_may_not_fall_back_is_an_error_that_says_why(
    kind: TransportKind, why: str, producer: TensorProcess, new_plane: NewPlane
) -> None:
    consumer = new_plane(kind, host=HostId("elsewhere"))

    with pytest.raises(TensorLost, match=why):
        await read(consumer, producer.publish(MIB, 1))
    assert consumer.peers() == ()


async def test_a_producer_without_a_door_is_for_its_own_host(
    producer: TensorProcess, new_plane: NewPlane
) -> None:
    ref = replace(producer.publish(MIB, 1), address="")

    with pytest.raises(TensorLost, match="its producer has no TensorService for other hosts"):
        await read(new_plane(STREAM), ref)
    assert (await read(new_plane(), ref)).data == bytes_of(MIB, 1)


@EACH
async def test_a_guessed_token_a_stale_lease_and_an_altered_header_are_refused(
    kind: TransportKind, producer: TensorProcess, new_plane: NewPlane
) -> None:
    consumer = new_plane(kind)
    ref = producer.publish(MIB, 1)
    guessed = replace(ref, token=TensorToken("0" * 32))
    unknown = replace(ref, lease=LeaseId(99))
    relabelled = replace(ref, header=replace(ref.header, rate_hz=8000))

    for altered in (guessed, unknown, relabelled):
        with pytest.raises(TensorLost, match=r"token|lease ended|bytes changed"):
            await read(consumer, altered)
    assert (await read(consumer, ref)).data == bytes_of(MIB, 1)

    producer.release()
    with pytest.raises(TensorLost, match="its lease ended"):
        await read(consumer, ref)
    consumer.release_owner("reader")
    assert consumer.statistics().used_bytes == 0


@NETWORK
async def test_bytes_that_changed_in_the_slab_are_noticed_wherever_they_are(
    kind: TransportKind, producer: TensorProcess, new_plane: NewPlane, folder: Path
) -> None:
    consumer = new_plane(TCP)
    await read(consumer, producer.publish(MIB, 1))
    ref = producer.publish(9 * MIB, 1)
    assert ref.digest is not None, "the producer has met a peer that reads over a network"
    with (folder / in_slab(ref).segment).open("r+b") as segment:
        segment.seek(ref.location.offset + 5_000_001)
        segment.write(b"?!")

    with pytest.raises(TensorLost, match=f"bytes changed on the way.*{ref.digest:016x}"):
        await read(new_plane(kind), ref)
    assert consumer.statistics().received == 1


@NETWORK
async def test_an_earlier_life_at_the_same_address_is_stale_and_the_next_one_is_read(
    kind: TransportKind, start_process: StartProcess, new_plane: NewPlane
) -> None:
    consumer = new_plane(kind)
    first = start_process()
    stale = first.publish(MIB, 1)
    await read(consumer, stale)
    first.kill()
    second = start_process(port=first.port)
    fresh = second.publish(MIB, 2)

    with pytest.raises(TensorLost):
        await read(consumer, stale)
    assert (await read(consumer, fresh)).data == bytes_of(MIB, 2)
    with pytest.raises(TensorLost, match="is gone"):
        await read(consumer, stale)


@NETWORK
async def test_room_for_what_is_received_is_bounded_and_waits_end(
    kind: TransportKind, producer: TensorProcess, new_plane: NewPlane
) -> None:
    consumer = new_plane(kind, slab_bytes=3 * MIB)
    first, second, huge = (producer.publish(length, 1) for length in (2 * MIB, 2 * MIB, 4 * MIB))
    await read(consumer, first, "first")

    with pytest.raises(DeadlineExceeded, match="no room"):
        await consumer.fetch(second, owner="second", deadline=Deadline.after(0.05))
    with pytest.raises(SetupError, match=r"limits\.slabBytes"):
        await read(consumer, huge)
    consumer.release_owner("first")
    assert (await read(consumer, second, "second")).data == bytes_of(2 * MIB, 1)
    assert consumer.statistics().received == 1


@NETWORK
async def test_what_was_received_goes_with_the_deadline_of_its_request(
    kind: TransportKind, producer: TensorProcess, new_plane: NewPlane
) -> None:
    consumer = new_plane(kind, slab_bytes=3 * MIB)
    await read(consumer, producer.publish(2 * MIB, 1), "warm")
    consumer.release_owner("warm")

    await consumer.fetch(producer.publish(2 * MIB, 2), owner="early", deadline=Deadline.after(0.5))
    tensor = await read(consumer, producer.publish(2 * MIB, 3), "late")

    assert tensor.data == bytes_of(2 * MIB, 3)
    assert consumer.release_owner("early") == 0
