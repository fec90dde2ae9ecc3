"""The size of a stream's first chunk, as a table."""

import pytest

from fakes.graphs import CHUNKS
from omnistage_gateway.requests.chunking import first_frames


@pytest.mark.parametrize(
    ("load", "frames"),
    [(0.0, 2), (0.2, 2), (0.25, 4), (0.5, 8), (0.75, 16), (1.0, 16), (7.5, 16)],
)
def test_the_busier_the_consumer_the_larger_the_first_chunk(load: float, frames: int) -> None:
    assert first_frames(CHUNKS, load=load) == frames


@pytest.mark.parametrize(("wanted", "frames"), [(1, 1), (3, 3), (25, 25), (1000, 25), (0, 1)])
def test_what_the_client_wants_counts_up_to_the_later_chunks(wanted: int, frames: int) -> None:
    assert first_frames(CHUNKS, load=1.0, wanted=wanted) == frames
