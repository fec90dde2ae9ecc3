"""How early the first sound of an answer comes: the benchmark `omnistage bench first-audio`.

It runs `simulated-streaming` (three stages with the pace of a real omni model and no model) twice,
once with its `Stream` edges streaming and once with each of them `Full`, asks for a spoken answer
again and again, one request at a time, and notes when the first audio reaches the client. Beside the
two medians stands the least that the stages' own costs allow, worked out from the plan, so that what
the platform adds can be read off.
"""

import statistics
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from omnistage_cli.bench.children import run_child
from omnistage_cli.bench.orders import ListenOrder, ListenResult
from omnistage_cli.runtime import Site
from omnistage_common.errors import InvalidPipeline
from omnistage_common.pipeline.plan import EdgeMode, EdgePlan, PipelinePlan, StagePlan

__all__ = ["FirstAudio", "FirstAudioReport", "Pace", "pace_of", "report_of"]

WARMUP: Final = 1


class Pace(Struct, frozen=True, kw_only=True):
    """What the stages cost, as their plan says."""

    tokens: int
    token_seconds: float
    frames: int
    frame_seconds: float
    first_frames: int
    """Frames in the first chunk to an idle vocoder."""
    chunk_seconds: float
    chunk_frames: int
    """Frames that one vocoder step converts."""

    @property
    def streamed_minimum(self) -> float:
        """Seconds to the first audio when every stage hands over at once and for nothing.

        The k-th frame needs the k-th token, as long as there is one, and the frame before it.
        """
        written = spoken = 0.0
        for frame in range(1, self.first_frames + 1):
            written = min(frame, self.tokens) * self.token_seconds
            spoken = max(spoken, written) + self.frame_seconds
        return spoken + -(-self.first_frames // self.chunk_frames) * self.chunk_seconds

    @property
    def unstreamed_minimum(self) -> float:
        """The same when each stage waits for the end of the one before it."""
        chunks = -(-self.frames // self.chunk_frames)
        return (
            self.tokens * self.token_seconds
            + self.frames * self.frame_seconds
            + chunks * self.chunk_seconds
        )


class FirstAudioReport(Struct, frozen=True, kw_only=True):
    """What was measured; medians, in milliseconds from the sending of a request."""

    streamed_ms: float
    unstreamed_ms: float
    minimum_ms: float
    """What the stages' own costs make of the streamed time."""
    unstreamed_minimum_ms: float
    ratio: float
    """Streamed over unstreamed."""
    added_per_edge_ms: float
    """Streamed over the minimum, divided by the edges that the first sound crosses."""
    streamed_of_requests_ms: tuple[float, ...]
    unstreamed_of_requests_ms: tuple[float, ...]
    answer_seconds: float
    """Sound in one answer."""


def pace_of(plan: PipelinePlan) -> Pace:
    """What a plan of simulated stages costs: text, then frames, then samples.

    Raises:
        InvalidPipeline: The plan is not a chain of three such stages.
    """
    try:
        thinker, talker, vocoder = plan.stages
        conversion = vocoder.engine_args["converts"]
        chunk = _edge(plan, talker).chunk
        first = chunk.first_frames[0] if chunk is not None else 1
        return Pace(
            tokens=thinker.engine_args["steps"],
            token_seconds=thinker.engine_args["step_seconds"],
            frames=talker.engine_args["steps"],
            frame_seconds=talker.engine_args["step_seconds"],
            first_frames=first,
            chunk_seconds=vocoder.engine_args["step_seconds"],
            chunk_frames=conversion["rows_per_step"],
        )
    except (KeyError, ValueError, StopIteration) as other:
        raise InvalidPipeline(
            f"{plan.name} is not a chain of three simulated stages that say what they cost;"
            " see deploy/pipelines/simulated-streaming.yaml",
            field="FILE",
        ) from other


def _edge(plan: PipelinePlan, producer: StagePlan) -> EdgePlan:
    return next(edge for edge in plan.edges if edge.producer == producer.name)


class FirstAudio:
    """A session of the local runtime that listens."""

    def __init__(self, plan: PipelinePlan, requests: int, progress: Callable[[str], None]) -> None:
        self.plan = plan
        self._requests = requests
        self._progress = progress
        self.result: ListenResult | None = None

    async def __call__(self, site: Site) -> None:
        """Measures the running pipeline."""
        streams = any(edge.mode is EdgeMode.STREAM for edge in self.plan.edges)
        how = "streaming" if streams else "each stage after the other"
        self._progress(f"{how}: {WARMUP} + {self._requests} answers, one at a time")
        self.result = await run_child(
            "omnistage_cli.bench.listener",
            ListenOrder(
                url=f"{site.url}/v1/chat/completions",
                body=_body(self.plan),
                requests=self._requests,
                warmup=WARMUP,
            ),
            ListenResult,
        )


def _body(plan: PipelinePlan) -> dict[str, Any]:
    return {
        "model": plan.served_names[0],
        "messages": [{"role": "user", "content": "How soon do I hear you?"}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "alloy", "format": "pcm16"},
        "stream": True,
    }


def report_of(
    plan: PipelinePlan, streamed: ListenResult, unstreamed: ListenResult
) -> FirstAudioReport:
    """Both measurements beside what the plan allows.

    Args:
        plan: With its edges streaming.
        streamed: What came with them so.
        unstreamed: What came with each edge `Full`.
    """
    pace = pace_of(plan)
    early = [hearing.first_audio_ms for hearing in streamed.hearings]
    late = [hearing.first_audio_ms for hearing in unstreamed.hearings]
    minimum = pace.streamed_minimum * 1e3
    added = statistics.median(early) - minimum
    return FirstAudioReport(
        streamed_ms=round(statistics.median(early), 2),
        unstreamed_ms=round(statistics.median(late), 2),
        minimum_ms=round(minimum, 2),
        unstreamed_minimum_ms=round(pace.unstreamed_minimum * 1e3, 2),
        ratio=round(statistics.median(early) / statistics.median(late), 4),
        added_per_edge_ms=round(added / len(plan.edges), 3),
        streamed_of_requests_ms=tuple(early),
        unstreamed_of_requests_ms=tuple(late),
        answer_seconds=round(streamed.hearings[0].audio_bytes / 2 / 24000, 3),
    )
