"""What the plan allows for the first sound, and what the report makes of two measurements."""

from pathlib import Path

import msgspec
import pytest

from fakes.deployment import SIMULATED_OMNI, resolved_plan
from omnistage_cli.bench.first_audio import Pace, pace_of, report_of
from omnistage_cli.bench.orders import Hearing, ListenResult
from omnistage_common.errors import InvalidPipeline

STREAMING: Path = SIMULATED_OMNI.with_name("simulated-streaming.yaml")
PACE = Pace(
    tokens=40,
    token_seconds=0.03,
    frames=125,
    frame_seconds=0.02,
    first_frames=2,
    chunk_seconds=0.05,
    chunk_frames=25,
)


def heard(*milliseconds: float) -> ListenResult:
    """Answers of 10 s whose first audio came then."""
    return ListenResult(
        hearings=tuple(
            Hearing(first_text_ms=1, first_audio_ms=each, last_byte_ms=9e3, audio_bytes=480_000)
            for each in milliseconds
        )
    )


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        # The second token at 0.06, its frame at 0.08, its chunk at 0.13.
        ({}, 0.13),
        # One frame needs one token.
        ({"first_frames": 1}, 0.10),
        # Frames that take longer than tokens wait for one another.
        ({"frame_seconds": 0.1}, 0.03 + 0.2 + 0.05),
        # After the last token frames wait for nothing but one another.
        ({"tokens": 1, "first_frames": 4}, 0.03 + 4 * 0.02 + 0.05),
        # A first chunk over the vocoder's step costs two steps.
        ({"tokens": 1, "first_frames": 26}, 0.03 + 26 * 0.02 + 0.1),
    ],
)
def test_the_least_possible_time_follows_from_the_costs(
    changes: dict[str, float], seconds: float
) -> None:
    pace = msgspec.structs.replace(PACE, **changes)

    assert pace.streamed_minimum == pytest.approx(seconds)


def test_without_streaming_every_stage_waits_for_all_of_the_one_before() -> None:
    assert PACE.unstreamed_minimum == pytest.approx(40 * 0.03 + 125 * 0.02 + 5 * 0.05)


def test_the_report_holds_medians_their_ratio_and_what_an_edge_adds() -> None:
    plan = resolved_plan(file=STREAMING)
    minimum = pace_of(plan).streamed_minimum * 1e3

    report = report_of(plan, heard(minimum + 6, 900, minimum + 4), heard(4000, 4001, 1))

    assert report.streamed_ms == pytest.approx(minimum + 6, abs=0.02)
    assert report.unstreamed_ms == 4000
    assert report.minimum_ms == pytest.approx(minimum, abs=0.02)
    assert report.ratio == pytest.approx((minimum + 6) / 4000, abs=1e-3)
    assert report.added_per_edge_ms == pytest.approx(3, abs=0.02)
    assert report.answer_seconds == 10


def test_the_pipeline_has_the_pace_that_it_says() -> None:
    pace = pace_of(resolved_plan(file=STREAMING))

    assert 1 / pace.token_seconds == pytest.approx(30, rel=1e-3)
    assert 1 / pace.frame_seconds == pytest.approx(12.5 * 4)
    assert pace.frames / 12.5 == 10
    assert (pace.first_frames, pace.chunk_seconds) == (2, 0.05)


def test_a_pipeline_of_another_shape_is_refused() -> None:
    with pytest.raises(InvalidPipeline, match="chain of three simulated stages"):
        pace_of(resolved_plan(file=SIMULATED_OMNI))
