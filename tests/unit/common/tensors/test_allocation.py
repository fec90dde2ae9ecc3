"""The allocator: no two blocks overlap, nothing is lost, and what is freed is whole again."""

import random

import pytest

from omnistage_common.tensors.allocation import ALIGNMENT, Allocator


def test_blocks_are_aligned_and_taken_from_the_front() -> None:
    allocator = Allocator(1024)

    assert [allocator.allocate(size) for size in (1, 64, 65)] == [0, 64, 128]
    assert allocator.statistics().used == 64 + 64 + 128


def test_the_first_gap_that_fits_is_used() -> None:
    allocator = Allocator(1024)
    first, second, third = (allocator.allocate(128) for _ in range(3))
    assert (first, second, third) == (0, 128, 256)

    allocator.free(0)
    allocator.free(256)

    assert allocator.allocate(100) == 0
    assert allocator.allocate(200) == 256


def test_a_block_that_does_not_fit_is_an_answer_and_changes_nothing() -> None:
    allocator = Allocator(256)
    allocator.allocate(200)
    before = allocator.statistics()

    assert allocator.allocate(64) is None
    assert allocator.statistics() == before


def test_neighbours_merge_in_whatever_order_they_are_freed() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1)):
        allocator = Allocator(3 * 64)
        blocks = [allocator.allocate(64) for _ in range(3)]
        for index in order:
            block = blocks[index]
            assert block is not None
            allocator.free(block)

        statistics = allocator.statistics()
        assert (statistics.free_blocks, statistics.largest_free) == (1, 192)
        assert allocator.allocate(192) == 0


def test_what_is_left_over_at_the_end_is_not_used() -> None:
    allocator = Allocator(2 * ALIGNMENT - 1)

    assert allocator.capacity == ALIGNMENT
    assert allocator.fits(ALIGNMENT)
    assert not allocator.fits(ALIGNMENT + 1)


def test_a_slab_without_bytes_gives_none() -> None:
    allocator = Allocator(0)

    assert allocator.allocate(1) is None
    assert allocator.statistics().largest_free == 0


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_that_is_not_positive_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Allocator(1024).allocate(size)


def test_freeing_twice_or_in_the_middle_is_refused() -> None:
    allocator = Allocator(1024)
    allocator.allocate(256)

    with pytest.raises(ValueError, match="offset 64"):
        allocator.free(64)
    allocator.free(0)
    with pytest.raises(ValueError, match="offset 0"):
        allocator.free(0)


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_allocations_and_frees_agrees_with_a_map_of_every_byte(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - reproducible
    allocator = Allocator(64 * 64)
    taken_by: list[int | None] = [None] * 64
    live: dict[int, int] = {}

    for _ in range(500):
        if live and chance.random() < 0.5:
            offset = chance.choice(list(live))
            allocator.free(offset)
            lines = live.pop(offset)
            taken_by[offset // 64 : offset // 64 + lines] = [None] * lines
        else:
            size = chance.randint(1, chance.choice((64, 256, 2048)))
            lines = -(-size // 64)
            expected = _first_gap(taken_by, lines)
            offset_or_none = allocator.allocate(size)
            assert offset_or_none == expected
            if expected is not None:
                live[expected] = lines
                taken_by[expected // 64 : expected // 64 + lines] = [expected] * lines
        _agrees(allocator, taken_by, len(live))

    for offset in live:
        allocator.free(offset)
    assert allocator.statistics().largest_free == 64 * 64


def _first_gap(taken_by: list[int | None], lines: int) -> int | None:
    for start in range(len(taken_by) - lines + 1):
        if all(owner is None for owner in taken_by[start : start + lines]):
            return start * 64
    return None


def _agrees(allocator: Allocator, taken_by: list[int | None], allocations: int) -> None:
    gaps: list[int] = []
    run = 0
    for owner in [*taken_by, -1]:
        if owner is None:
            run += 1
        elif run:
            gaps.append(run)
            run = 0
    statistics = allocator.statistics()
    assert statistics.allocations == allocations
    assert statistics.used == 64 * sum(owner is not None for owner in taken_by)
    assert statistics.free_blocks == len(gaps)
    assert statistics.largest_free == 64 * max(gaps, default=0)
