"""What a replica is told when it starts."""

from pathlib import Path

import pytest

from omnistage_common.errors import SetupError
from omnistage_common.ids import OutputName, StageName
from omnistage_common.payloads import PayloadKind
from omnistage_common.pipeline.assignments import (
    assignment_of,
    encode_assignment,
    read_assignment,
)
from omnistage_common.pipeline.plan import (
    ChunkPlan,
    EdgeMode,
    EdgePlan,
    ReceivePlan,
    TransportChoice,
    received_by,
)
from unit.common.pipeline.examples import plan_of

TALKER = StageName("talker")


def edge(producer: str, output: str, **fields: object) -> EdgePlan:
    return EdgePlan(
        producer=StageName(producer),
        consumer=TALKER,
        output=OutputName(output),
        kind=PayloadKind.CODEC_FRAMES,
        mode=EdgeMode.STREAM,
        **fields,  # type: ignore[arg-type]
    )


def test_it_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    assignment = assignment_of(plan_of(), TALKER)
    path = tmp_path / "talker.json"
    path.write_bytes(encode_assignment(assignment))

    assert read_assignment(path) == assignment


def test_it_holds_what_the_stage_needs_of_its_pipeline() -> None:
    plan = plan_of()

    assignment = assignment_of(plan, TALKER)

    assert assignment.stage == plan.stage(TALKER)
    assert assignment.drain == plan.timeouts.drain
    assert assignment.transport is TransportChoice.AUTO
    assert [each.name for each in assignment.stage.receives] == ["hidden"]


def test_a_stage_that_the_pipeline_does_not_have_has_none() -> None:
    with pytest.raises(KeyError):
        assignment_of(plan_of(), StageName("nobody"))


def test_inlets_are_the_edges_that_lead_to_a_stage_once_by_name() -> None:
    chunk = ChunkPlan(first_frames=(2,), frames=25, context_frames=7)
    edges = [edge("b", "codes", chunk=chunk), edge("a", "codes", chunk=chunk), edge("a", "also")]

    received = received_by(TALKER, edges)

    assert received == (
        ReceivePlan(name=OutputName("also"), kind=PayloadKind.CODEC_FRAMES, mode=EdgeMode.STREAM),
        ReceivePlan(
            name=OutputName("codes"),
            kind=PayloadKind.CODEC_FRAMES,
            mode=EdgeMode.STREAM,
            context_frames=7,
        ),
    )
    assert received_by(StageName("a"), edges) == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read the assignment"),
        (b"{}", "is not an assignment"),
        (b"no json", "is not an assignment"),
    ],
)
def test_what_is_no_assignment_is_refused_with_a_remedy(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "talker.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(SetupError, match=said) as refused:
        read_assignment(path)

    assert refused.value.field == "--assignment"
