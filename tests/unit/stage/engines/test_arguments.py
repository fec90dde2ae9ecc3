"""`engineArgs` are known, typed and in range, or nothing starts."""

from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from fakes.engine_io import engine_spec
from omnistage_common.errors import SetupError
from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.arguments import parse_arguments, sole_output
from omnistage_stage.engines.vllm.arguments import VllmArguments


class Arguments(Struct, frozen=True, kw_only=True):
    """Arguments of an engine in a test."""

    size: Annotated[int, Meta(ge=1)] = 4
    share: float = 0.5
    name: str | None = None


def test_what_is_left_out_has_its_default() -> None:
    assert parse_arguments({"size": 2}, Arguments) == Arguments(size=2, share=0.5, name=None)


def test_a_whole_number_will_do_for_a_fraction() -> None:
    assert parse_arguments({"share": 1}, Arguments).share == 1.0


@pytest.mark.parametrize(
    ("args", "field", "said"),
    [
        ({"sise": 1}, "engineArgs.sise", "did you mean 'size'?"),
        ({"size": "4"}, "engineArgs.size", "'4' does not fit: Expected `int`, got `str`"),
        ({"size": 0}, "engineArgs.size", "Expected `int` >= 1"),
        ({"size": True}, "engineArgs.size", "Expected `int`"),
        ({"name": 3}, "engineArgs.name", "3 does not fit"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value_and_the_allowed_keys(
    args: dict[str, Any], field: str, said: str
) -> None:
    with pytest.raises(SetupError) as refused:
        parse_arguments(args, Arguments)

    assert refused.value.field == field
    assert field in refused.value.message
    assert said in refused.value.message
    assert "Allowed keys: name, share, size" in refused.value.message


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(SetupError, match=r"engineArgs\.size: .*; engineArgs\.other: unknown key"):
        parse_arguments({"size": "x", "other": 1}, Arguments)


def test_arguments_within_arguments_are_checked_too() -> None:
    with pytest.raises(SetupError, match=r"engineArgs\.defaults: .*`maxtokens`"):
        parse_arguments({"defaults": {"maxtokens": 3}}, VllmArguments)


def test_the_one_output_has_the_name_that_the_template_gives_it() -> None:
    spec = engine_spec({"answer": PayloadKind.TEXT})

    assert sole_output(spec, PayloadKind.TEXT) == "answer"


@pytest.mark.parametrize(
    "produces",
    [
        {},
        {"speech": PayloadKind.WAVEFORM},
        {"text": PayloadKind.TEXT, "more": PayloadKind.TEXT},
    ],
)
def test_a_template_that_expects_other_outputs_is_refused(
    produces: dict[str, PayloadKind],
) -> None:
    with pytest.raises(SetupError, match="makes exactly one output of kind text"):
        sole_output(engine_spec(produces), PayloadKind.TEXT)
