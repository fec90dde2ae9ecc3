"""Frames gathered into chunks: the sizes are the policy's, and no frame is lost or moved."""

import random
from collections.abc import Iterable
from itertools import chain

import pytest

from fakes.frames import reference, rows, rows_of, tensor, text_output
from omnistage_common.ids import OutputName
from omnistage_common.payloads import (
    INLINE_LIMIT,
    ElementType,
    Output,
    Payload,
    PayloadKind,
    Tensor,
    TensorHeader,
)
from omnistage_stage.service.gathering import Gathering

CODES = OutputName("codes")


def piece(*values: int, name: str = "codes", index: int = 0, width: int = 4) -> Output:
    """A piece of as many frames."""
    return Output(name=OutputName(name), payload=rows(*values, width=width), index=index)


def chunks(gathering: Gathering, pieces: Iterable[Output]) -> list[list[int]]:
    """What comes of pieces and of their end."""
    found = [chunk for each in pieces for chunk in gathering.add(each)] + gathering.rest()
    return [rows_of(chunk.payload) for chunk in found]


def one_by_one(count: int) -> list[Output]:
    return [piece(value) for value in range(count)]


def test_frames_made_one_by_one_leave_in_a_small_chunk_and_then_large_ones() -> None:
    found = chunks(Gathering(first_frames=2, frames=5), one_by_one(14))

    assert [len(chunk) for chunk in found] == [2, 5, 5, 2]
    assert list(chain.from_iterable(found)) == list(range(14))


def test_a_chunk_leaves_with_its_last_frame_and_not_later() -> None:
    gathering = Gathering(first_frames=2, frames=3)

    left = [len(gathering.add(each)) for each in one_by_one(6)]

    assert left == [0, 1, 0, 0, 1, 0]


def test_a_piece_of_many_frames_is_cut() -> None:
    found = chunks(Gathering(first_frames=4, frames=25), [piece(*range(60)), piece(60)])

    assert [len(chunk) for chunk in found] == [4, 25, 25, 7]
    assert list(chain.from_iterable(found)) == list(range(61))


def test_frames_that_fill_a_chunk_exactly_leave_nothing_behind() -> None:
    assert [len(c) for c in chunks(Gathering(first_frames=3, frames=3), one_by_one(6))] == [3, 3]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_pieces_the_frames_are_the_same(seed: int) -> None:
    die = random.Random(seed)  # noqa: S311 - reproducible
    sizes = [die.randint(0, 30) for _ in range(40)]
    values = iter(range(100_000))
    pieces = [piece(*(next(values) % 251 for _ in range(size))) for size in sizes]
    first, later = die.randint(1, 16), die.randint(1, 40)

    found = chunks(Gathering(first_frames=first, frames=later), pieces)

    assert list(chain.from_iterable(found)) == [value % 251 for value in range(sum(sizes))]
    counts = [len(chunk) for chunk in found if chunk]
    assert counts[:-1] == [first, *[later] * (len(counts) - 2)][: len(counts) - 1]
    assert counts[-1] <= max(first, later)


def test_outputs_and_items_are_gathered_apart_with_a_first_chunk_each() -> None:
    gathering = Gathering(first_frames=1, frames=2)
    made = [
        gathering.add(piece(1)),
        gathering.add(piece(2, index=1)),
        gathering.add(piece(3, name="other")),
        gathering.add(piece(4)),
        gathering.add(piece(5, index=1)),
    ]

    assert [[(o.name, o.index, rows_of(o.payload)) for o in outputs] for outputs in made] == [
        [("codes", 0, [1])],
        [("codes", 1, [2])],
        [("other", 0, [3])],
        [],
        [],
    ]
    assert [(o.name, o.index, rows_of(o.payload)) for o in gathering.rest()] == [
        ("codes", 0, [4]),
        ("codes", 1, [5]),
    ]


@pytest.mark.parametrize(
    "passing",
    [
        text_output(name="codes"),
        Output(name=CODES, payload=reference().payload),
        Output(
            name=CODES,
            payload=Payload(
                kind=PayloadKind.TOKENS,
                content=Tensor(
                    header=TensorHeader(element_type=ElementType.UINT8, shape=()), data=b"1"
                ),
            ),
        ),
    ],
    ids=["text", "a reference", "a tensor without rows"],
)
def test_what_cannot_be_gathered_passes_after_what_was(passing: Output) -> None:
    gathering = Gathering(first_frames=3, frames=3)
    gathering.add(piece(1))

    before, itself = gathering.add(passing)

    assert rows_of(before.payload) == [1]
    assert itself is passing
    assert gathering.rest() == []


def test_a_reference_of_another_output_flushes_nothing() -> None:
    gathering = Gathering(first_frames=3, frames=3)
    gathering.add(piece(1))

    assert len(gathering.add(reference())) == 1
    assert len(gathering.rest()) == 1


def test_frames_of_another_form_are_not_joined() -> None:
    found = chunks(Gathering(first_frames=9, frames=9), [piece(1), piece(2, width=5), piece(3)])

    assert found == [[1], [2], [3]]


def test_a_chunk_never_grows_over_what_rides_inline() -> None:
    width = INLINE_LIMIT // 3
    gathering = Gathering(first_frames=100, frames=100)
    found = [chunk for n in range(8) for chunk in gathering.add(piece(n, width=width))]

    sizes = [chunk.payload.content.header.length for chunk in found]  # type: ignore[union-attr]
    assert [size // width for size in sizes] == [3, 3]
    assert max(sizes) <= INLINE_LIMIT


def test_the_rate_of_the_frames_stays_with_them() -> None:
    gathering = Gathering(first_frames=2, frames=2)
    gathering.add(Output(name=CODES, payload=rows(1, rate_hz=12)))

    (chunk,) = gathering.add(Output(name=CODES, payload=rows(2, rate_hz=12)))

    content = chunk.payload.content
    assert isinstance(content, Tensor)
    assert content.header == TensorHeader(element_type=ElementType.UINT8, shape=(2, 4), rate_hz=12)
    assert chunk.payload.kind is PayloadKind.CODEC_FRAMES


def test_samples_are_rows_too() -> None:
    gathering = Gathering(first_frames=2, frames=2)
    sound = Payload(kind=PayloadKind.WAVEFORM, content=tensor(3))

    (chunk,) = gathering.add(Output(name=CODES, payload=sound))

    assert chunk.payload.content == tensor(2)
    assert [left.payload.content for left in gathering.rest()] == [tensor(1)]
