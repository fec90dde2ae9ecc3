"""Edges that could not do what they say are refused, each with field and remedy."""

import pytest

from omnistage_common.pipeline.plan import ChunkPlan, EdgeMode, TransportChoice
from unit.common.pipeline.examples import bent, found, lines_of, plan_of

EDGE = "{from: thinker, to: talker, output: hidden, mode: Full}"
STREAM = EDGE.replace("Full", "Stream")
AT = "p.yaml:27: spec.edges[0]"


def with_edge(fields: str, *changes: tuple[str, str]) -> str:
    """The example whose one edge has these fields beside its ends and its output."""
    return bent((EDGE, f"{{from: thinker, to: talker, output: hidden, {fields}}}"), *changes)


def chunked(policy: str) -> str:
    return with_edge(f"mode: Stream, chunk: {policy}")


def test_a_stream_edge_without_a_policy_hands_over_pieces_as_they_are_made() -> None:
    (edge,) = plan_of(bent((EDGE, STREAM))).edges

    assert edge.mode is EdgeMode.STREAM
    assert edge.chunk is None


def test_an_empty_policy_is_the_usual_one() -> None:
    (edge,) = plan_of(chunked("{}")).edges

    assert edge.chunk == ChunkPlan(first_frames=(2, 4, 8, 16), frames=25, context_frames=25)


def test_a_policy_is_taken_as_it_is_written() -> None:
    (edge,) = plan_of(chunked("{firstFrames: [3], frames: 3, contextFrames: 0}")).edges

    assert edge.chunk == ChunkPlan(first_frames=(3,), frames=3, context_frames=0)


def test_without_streaming_an_edge_is_full_and_has_no_chunks() -> None:
    (edge,) = plan_of(chunked("{}"), "streaming.chunked=false").edges

    assert edge.mode is EdgeMode.FULL
    assert edge.chunk is None


def test_a_policy_makes_another_revision() -> None:
    whole = plan_of(chunked("{}")).revision

    assert whole != plan_of(chunked("{frames: 50}")).revision
    assert whole != plan_of(bent((EDGE, STREAM))).revision


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        (
            "{firstFrames: [4, 2]}",
            (
                f"{AT}.chunk.firstFrames: is [4, 2], which does not rise (write the smallest size "
                "first, each once)"
            ),
        ),
        (
            "{firstFrames: [4, 4]}",
            (
                f"{AT}.chunk.firstFrames: is [4, 4], which does not rise (write the smallest size "
                "first, each once)"
            ),
        ),
        (
            "{frames: 8}",
            (
                f"{AT}.chunk.firstFrames: goes up to 16, more than a later chunk's 8 frames (write at "
                "most 8, or raise `frames`)"
            ),
        ),
        ("{firstFrames: []}", f"{AT}.chunk.firstFrames: must have at least 1 entries, not 0"),
        ("{firstFrames: [0, 2]}", f"{AT}.chunk.firstFrames[0]: must be at least 1, not `0`"),
        ("{frames: 0}", f"{AT}.chunk.frames: must be at least 1, not `0`"),
        ("{contextFrames: -1}", f"{AT}.chunk.contextFrames: must be at least 0, not `-1`"),
        ("{frame: 8}", f"{AT}.chunk.frame: unknown field (did you mean `frames`?)"),
    ],
)
def test_sizes_that_are_no_policy_are_refused(policy: str, line: str) -> None:
    assert lines_of(chunked(policy)) == [line]


def test_a_policy_on_a_full_edge_is_refused() -> None:
    assert lines_of(with_edge("mode: Full, chunk: {}")) == [
        (
            f"{AT}.chunk: stands on a `Full` edge, which hands over everything at once (write `mode: "
            "Stream`, or remove `chunk`)"
        )
    ]


@pytest.mark.parametrize("kind", ["text", "video"])
def test_a_policy_for_what_has_no_frames_is_refused(kind: str) -> None:
    text = with_edge(
        "mode: Stream, chunk: {}",
        ("{name: hidden, kind: hidden_states}", f"{{name: hidden, kind: {kind}}}"),
    )

    assert lines_of(text) == [
        (
            f"{AT}.chunk: stands on an edge of kind `{kind}`, which has no frames to gather (remove "
            "`chunk`; these have frames: codec_frames, embeddings, hidden_states, tokens, waveform)"
        )
    ]


@pytest.mark.parametrize("kind", ["codec_frames", "embeddings", "tokens", "waveform"])
def test_a_policy_for_what_has_frames_is_fine(kind: str) -> None:
    named = f"{{name: hidden, kind: {kind}}}"

    assert (
        lines_of(
            with_edge("mode: Stream, chunk: {}", ("{name: hidden, kind: hidden_states}", named))
        )
        == []
    )


TWO_OUTPUTS = (
    "{name: hidden, kind: hidden_states}",
    "{name: hidden, kind: hidden_states}\n        - {name: tokens, kind: tokens}",
)
MIDDLE = """\
    - name: middle
      execution: Generation
      produces: [{name: codes, kind: codec_frames}]
      defaults: {engine: simulated}
  edges:
"""


def with_detour(first: str, second: str) -> str:
    """A stream from the thinker to the talker, and a way past it with edges of these modes."""
    edges = (
        f"{STREAM}\n"
        f"    - {{from: thinker, to: middle, output: hidden, mode: {first}}}\n"
        f"    - {{from: middle, to: talker, output: codes, mode: {second}}}"
    )
    return bent(("  edges:\n", MIDDLE), (EDGE, edges))


@pytest.mark.parametrize("other", ["Full", "Full, optional: true"])
def test_a_stream_beside_a_full_edge_between_the_same_stages_is_refused(other: str) -> None:
    second = f"{STREAM}\n    - {{from: thinker, to: talker, output: tokens, mode: {other}}}"

    (line,) = lines_of(bent(TWO_OUTPUTS, (EDGE, second)))

    assert line.endswith(
        "edges[0].mode: is `Stream`, but talker starts only when thinker has ended, since it waits "
        "for a `Full` edge of thinker -> talker (make all of them `Stream`, or this one `Full`)"
    )


@pytest.mark.parametrize(
    ("first", "second"), [("Stream", "Full"), ("Full", "Stream"), ("Full", "Full")]
)
def test_a_stream_past_a_stage_that_waits_is_refused(first: str, second: str) -> None:
    lines = lines_of(with_detour(first, second))

    assert any(
        line.startswith("p.yaml:31: spec.edges[0].mode")
        and "`Full` edge of thinker -> middle -> talker" in line
        for line in lines
    )


def test_a_stream_past_a_stage_that_streams_as_well_is_fine() -> None:
    assert lines_of(with_detour("Stream", "Stream")) == []


def test_a_stage_that_only_optional_edges_feed_is_refused() -> None:
    assert lines_of(with_edge("mode: Full, optional: true")) == [
        (
            "p.yaml:20: spec.stages[talker]: may be left with nothing to start from: every edge that "
            "leads to it is optional (make one of them required, or add `consumes`)"
        )
    ]


def test_a_stage_with_an_input_of_its_own_may_have_optional_edges_only() -> None:
    consumes = (
        "      produces:\n        - {name: speech",
        "      consumes: [{name: text, kind: text}]\n      produces:\n        - {name: speech",
    )

    assert lines_of(with_edge("mode: Full, optional: true", consumes)) == []


@pytest.mark.parametrize(("name", "kind"), [("text", "text"), ("image", "image")])
def test_a_request_brings_text_and_images_too(name: str, kind: str) -> None:
    named = f"{{name: {name}, kind: {kind}}}"

    plan = plan_of(bent(("{name: conversation, kind: conversation}", named)))

    assert [(each.name, each.kind.value) for each in plan.stages[0].consumes] == [(name, kind)]


@pytest.mark.parametrize("choice", TransportChoice, ids=lambda choice: choice.value)
def test_every_transport_reaches_the_plan_without_a_warning(choice: TransportChoice) -> None:
    override = f"transfer.transport={choice.value}"

    assert found(bent(), override) == ()
    assert plan_of(bent(), override).transport is choice


def test_a_transport_that_nobody_names_is_chosen_by_each_pair() -> None:
    plan = plan_of()

    assert plan.transport is TransportChoice.AUTO
    assert plan.origins["transport"].value == "built-in"


def test_the_command_line_decides_on_the_transport() -> None:
    text = bent(("  timeouts: {request: 60s}", "  transfer: {transport: TCP}"))

    assert plan_of(text).origins["transport"].value == "pipeline"
    plan = plan_of(text, "transfer.transport=SharedMemory")
    assert plan.transport is TransportChoice.SHARED_MEMORY
    assert plan.origins["transport"].value == "command line"
