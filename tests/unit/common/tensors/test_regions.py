"""Memory that drivers and engines know of: told once, told whole where that matters, taken back."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.tensor_producer import MIB, in_slab, random_tensor
from omnistage_common.deadlines import Deadline
from omnistage_common.payloads import TensorRef
from omnistage_common.tensors import TensorPlane
from omnistage_common.tensors.regions import PrivateMemory, RegionWatchers

NewPlane = Callable[..., TensorPlane]


class Locks:
    """Page locks that are held, as a device driver would hold them."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.total = 0

    def lock(self, address: int, size: int) -> Callable[[], None]:
        """See `PageLock`."""
        self.held[address] = size
        self.total += 1

        def unlock() -> None:
            del self.held[address]

        return unlock


async def publish(plane: TensorPlane) -> TensorRef:
    ref = await plane.publish(random_tensor(MIB), owner="a", deadline=Deadline.after(60))
    assert isinstance(ref, TensorRef)
    return ref


@pytest.mark.parametrize("when", ["early", "late"])
async def test_the_slab_is_locked_once_and_whole_whenever_it_is_made(
    when: str, new_plane: NewPlane, tmp_path: Path
) -> None:
    plane, locks = new_plane(), Locks()
    if when == "early":
        plane.page_lock(locks.lock)
        assert locks.held == {}, "no memory before there is a tensor"
    ref = await publish(plane)
    if when == "late":
        plane.page_lock(locks.lock)

    segment = tmp_path / in_slab(ref).segment
    ((address, size),) = locks.held.items()
    assert segment.stat().st_blocks * 512 >= size == segment.stat().st_size
    assert ctypes.string_at(address + ref.location.offset, MIB) == random_tensor(MIB).data
    await publish(plane)
    assert locks.total == 1

    plane.close()
    assert locks.held == {}


async def test_a_copy_of_a_device_lands_where_consumers_read_it(new_plane: NewPlane) -> None:
    producer, consumer, locks = new_plane(), new_plane(), Locks()
    producer.page_lock(locks.lock)
    tensor = random_tensor(MIB)
    assert isinstance(tensor.data, bytes)

    with await producer.reserve(tensor.header, owner="a", deadline=Deadline.after(60)) as place:
        target = ctypes.addressof(ctypes.c_char.from_buffer(place.data))
        ((address, size),) = locks.held.items()
        assert address <= target < target + MIB <= address + size
        ctypes.memmove(target, tensor.data, MIB)
        ref = await place.seal()

    fetched = await consumer.fetch(ref, owner="b", deadline=Deadline.after(60))
    assert fetched.data == tensor.data


def test_watchers_hear_of_regions_before_and_after_and_take_back_in_reverse() -> None:
    watchers, told = RegionWatchers(), list[str]()

    def watcher(name: str) -> Callable[[int, int], Callable[[], None]]:
        def watch(_: int, size: int) -> Callable[[], None]:
            told.append(f"{name} {size}")
            return lambda: told.append(f"{name} ends {size}")

        return watch

    watchers.watch(watcher("first"), whole=False)
    watchers.made(PrivateMemory(4096))
    watchers.watch(watcher("second"), whole=True)
    watchers.made(PrivateMemory(8192))
    assert told == ["first 4096", "second 4096", "first 8192", "second 8192"]

    told.clear()
    watchers.close()
    watchers.close()
    ends = ["second ends 8192", "first ends 8192", "second ends 4096", "first ends 4096"]
    assert told == ends


def test_private_memory_is_where_it_says() -> None:
    memory = PrivateMemory(8192)
    memory.view[5:11] = b"tensor"
    memory.claim_all()

    assert ctypes.string_at(memory.address + 5, 6) == b"tensor"
    assert memory.view.nbytes == memory.size == 8192
