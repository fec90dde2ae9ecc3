"""Reads of the transfer engine in parts, with an engine that does what the test says."""

from collections.abc import Callable
from itertools import count

import pytest
from xxhash import xxh3_64_intdigest

from fakes.tensor_producer import MIB, random_tensor
from omnistage_common.tensors.mooncake import Pull, missing_for, rdma_devices
from omnistage_common.tensors.transport import TransportKind

SKIP = 64


class FakeEngine:
    """Reads end when the test ends them; their bytes are there before."""

    def __init__(self, source: bytes, target: memoryview) -> None:
        self._source = source
        self._target = target
        self._batches = count(1)
        self.travelling: dict[int, int] = {}
        """Batch -> what `transfer_check_status` answers."""
        self.read: list[tuple[int, int]] = []
        self.refuses = False

    def batch_transfer_async_read(
        self, target: str, to: list[int], at: list[int], lengths: list[int]
    ) -> int:
        """Brings the bytes at once; the read is under way until `finish`."""
        assert target == "there:1"
        if self.refuses:
            return 0
        (local,), (remote,), (length,) = to, at, lengths
        assert remote - 5000 == local - 1000
        start = local - 1000
        self._target[start : start + length] = self._source[start : start + length]
        self.read.append((start, start + length))
        batch = next(self._batches)
        self.travelling[batch] = 0
        return batch

    def transfer_check_status(self, batch: int, /) -> int:
        """0 under way, 1 done, negative failed; asked no more after that."""
        code = self.travelling[batch]
        if code:
            del self.travelling[batch]
        return code

    def finish(self, code: int = 1, *, newest: bool = False) -> None:
        """Ends the oldest read, or the newest."""
        waiting = [batch for batch, now in self.travelling.items() if now == 0]
        self.travelling[max(waiting) if newest else min(waiting)] = code


Begin = Callable[[int], tuple[Pull, FakeEngine, bytes]]


@pytest.fixture
def begin() -> Begin:
    def made(length: int) -> tuple[Pull, FakeEngine, bytes]:
        source = bytes(random_tensor(length).data)
        target = memoryview(bytearray(length))
        pull = Pull(peer="there:1", remote=5000, local=1000, target=target, skip=SKIP)
        return pull, FakeEngine(source, target), source

    return made


@pytest.mark.parametrize("length", [SKIP + 1, 100_000, MIB, 2 * MIB, 5 * MIB + 7, 80 * MIB])
async def test_all_of_it_is_read_once_and_summed_up_without_the_front(
    length: int, begin: Begin
) -> None:
    pull, engine, source = begin(length)
    travelling = 0

    while not pull.over():
        pull.step(engine)
        travelling = max(travelling, len(engine.travelling))
        if engine.travelling:
            engine.finish(newest=len(engine.read) % 2 == 0)

    assert travelling <= 4
    assert [start for start, _ in engine.read] == [0, *(end for _, end in engine.read[:-1])]
    assert engine.read[-1][1] == length == pull.moved
    assert pull.failure == ""
    assert pull.digest == xxh3_64_intdigest(source[SKIP:])


async def test_what_lands_on_a_device_is_not_looked_at(begin: Begin) -> None:
    _, engine, source = begin(33 * MIB)

    class Unseen:
        def __len__(self) -> int:
            return len(source)

        def __getitem__(self, part: slice, /) -> memoryview:
            raise AssertionError(part)

    pull = Pull(peer="there:1", remote=5000, local=1000, target=Unseen(), skip=None)
    while not pull.over():
        pull.step(engine)
        if engine.travelling:
            engine.finish()
    assert (pull.moved, pull.failure) == (33 * MIB, "")


async def test_a_short_one_goes_in_a_few_parts_and_a_long_one_in_large_ones(begin: Begin) -> None:
    for length, parts in ((100_000, 1), (MIB, 4), (17 * MIB, 1), (64 * MIB + SKIP, 3)):
        pull, engine, _ = begin(length)
        while not pull.over():
            pull.step(engine)
            if engine.travelling:
                engine.finish()
        assert len(engine.read) == parts


async def test_a_step_says_whether_anything_moved(begin: Begin) -> None:
    pull, engine, _ = begin(MIB)

    assert pull.step(engine)
    assert pull.begun
    assert not pull.step(engine)
    engine.finish()
    assert pull.step(engine)
    assert pull.moved == MIB // 4


@pytest.mark.parametrize("code", [-1, -2])
async def test_a_part_that_fails_fails_the_whole_once_the_others_have_ended(
    code: int, begin: Begin
) -> None:
    pull, engine, _ = begin(2 * MIB)
    pull.step(engine)
    engine.finish(code)

    pull.step(engine)
    assert f"failed with code {code}" in pull.failure
    assert not pull.over(), "three parts may still write"
    for _ in range(3):
        engine.finish()
        pull.step(engine)
    assert pull.over()


async def test_no_part_begins_after_one_has_failed(begin: Begin) -> None:
    pull, engine, _ = begin(33 * MIB)
    pull.step(engine)
    engine.finish(-1)
    pull.step(engine)

    assert pull.over()
    assert len(engine.read) == 1


async def test_the_next_part_of_a_long_one_travels_while_the_one_that_came_is_summed_up(
    begin: Begin,
) -> None:
    pull, engine, source = begin(33 * MIB)
    pull.step(engine)
    assert len(engine.travelling) == 1
    engine.finish()

    pull.step(engine)
    assert len(engine.travelling) == 1
    assert pull.digest == xxh3_64_intdigest(source[SKIP : engine.read[0][1]])


async def test_a_peer_that_cannot_be_reached_is_named(begin: Begin) -> None:
    pull, engine, _ = begin(MIB)
    engine.refuses = True

    pull.step(engine)

    assert pull.over()
    assert pull.failure == "Mooncake cannot reach there:1"


async def test_a_cancelled_one_is_over_when_nobody_writes(begin: Begin) -> None:
    pull, engine, _ = begin(2 * MIB)
    pull.step(engine)
    pull.cancel()

    assert not pull.over()
    for _ in range(4):
        engine.finish()
    pull.step(engine)
    assert pull.over()
    pull.settle()
    pull.settle()
    assert pull.settled.done()


def test_what_is_missing_is_said() -> None:
    assert missing_for(TransportKind.TCP) == ""
    if not rdma_devices():
        assert missing_for(TransportKind.RDMA) == "there is no RDMA device"
