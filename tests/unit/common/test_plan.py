"""The plan as a document: exact, deterministic, and refused when it is something else."""

import json
from pathlib import Path

import msgspec
import pytest

from fakes.plans import plan_of_stages
from omnistage_common.errors import SetupError
from omnistage_common.ids import OutputName, StageName
from omnistage_common.payloads import PayloadKind
from omnistage_common.pipeline.plan import (
    EdgeMode,
    EdgePlan,
    Origin,
    OutputPlan,
    PipelinePlan,
    decode_plan,
    encode_plan,
    read_plan,
)

EDGE = EdgePlan(
    producer=StageName("recogniser"),
    consumer=StageName("thinker"),
    output=OutputName("transcript"),
    kind=PayloadKind.TEXT,
    mode=EdgeMode.STREAM,
    optional=True,
)
TRANSCRIPT = OutputPlan(
    stage=StageName("recogniser"),
    output=OutputName("transcript"),
    kind=PayloadKind.TEXT,
    modality=None,
)


def full_plan() -> PipelinePlan:
    """A plan with something in every field."""
    plan = plan_of_stages({"recogniser": {"B": "2", "A": "1"}, "thinker": {}})
    arguments = {"z": [1, 2.5, None, {"deep": "é\u2028"}], "a": True}
    stages = tuple(msgspec.structs.replace(s, engine_args=arguments) for s in plan.stages)
    return msgspec.structs.replace(
        plan,
        stages=stages,
        edges=(EDGE,),
        outputs=(*plan.outputs, TRANSCRIPT),
        origins={f"value {origin.name}": origin for origin in Origin},
    )


def test_decoding_undoes_encoding() -> None:
    assert decode_plan(encode_plan(full_plan())) == full_plan()


def test_encoding_undoes_decoding() -> None:
    document = encode_plan(full_plan())

    assert encode_plan(decode_plan(document)) == document


def test_equal_plans_are_equal_documents_whatever_the_order_they_were_made_in() -> None:
    plan = full_plan()
    turned = msgspec.structs.replace(
        plan,
        stages=tuple(
            msgspec.structs.replace(
                stage,
                env=dict(reversed(stage.env.items())),
                engine_args=dict(reversed(stage.engine_args.items())),
            )
            for stage in plan.stages
        ),
        origins=dict(reversed(plan.origins.items())),
    )

    assert turned == plan
    assert encode_plan(turned) == encode_plan(plan)


def test_enumerations_travel_as_words() -> None:
    document = json.loads(encode_plan(full_plan()))

    assert document["edges"][0]["mode"] == "Stream"
    assert document["origins"]["value COMMAND_LINE"] == "command line"


def test_a_stage_is_found_by_its_name() -> None:
    assert full_plan().stage(StageName("thinker")).name == "thinker"
    with pytest.raises(KeyError, match="talker"):
        full_plan().stage(StageName("talker"))


def test_a_plan_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(encode_plan(full_plan()))

    assert read_plan(path) == full_plan()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"name: yaml",
        b"[1, 2]",
        b'{"name": "\xff\xfe"}',
        b"\x00\x01\x02",
        encode_plan(full_plan())[:-20],
        encode_plan(full_plan()).replace(b"Autoregressive", b"Telepathic"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_with_the_way_to_get_one(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)

    with pytest.raises(SetupError, match=r"is not a plan: .*omnistage render FILE") as refused:
        read_plan(path)

    assert refused.value.field == "--plan"
    assert str(path) in refused.value.message


@pytest.mark.parametrize("name", ["absent.json", "."])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SetupError, match="cannot read the plan") as refused:
        read_plan(tmp_path / name)

    assert refused.value.field == "--plan"
