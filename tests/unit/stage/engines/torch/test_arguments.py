"""`engineArgs` of the torch engine: each component knows its own and refuses the others' by name."""

from typing import Any

import pytest

from fakes.engine_io import engine_spec
from omnistage_common.errors import SetupError
from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.torch import TorchEngine
from omnistage_stage.engines.torch.arguments import (
    PlacementArguments,
    TalkerArguments,
    Token2WavArguments,
    parse_component_arguments,
)


@pytest.mark.parametrize(
    ("component", "struct"),
    [
        ("talker", TalkerArguments),
        ("code2wav", PlacementArguments),
        ("token2wav", Token2WavArguments),
    ],
)
def test_the_component_decides_which_arguments_there_are(
    component: str, struct: type[PlacementArguments]
) -> None:
    parsed = parse_component_arguments({"component": component, "omp_threads": 2})

    assert type(parsed) is struct
    assert parsed.component == component
    assert parsed.omp_threads == 2


@pytest.mark.parametrize(
    ("arguments", "field", "words"),
    [
        ({}, "component", "component is missing"),
        ({"component": "thinker"}, "component", "none of code2wav, talker, token2wav"),
        ({"component": 3}, "component", "3 is none of"),
        ({"component": "code2wav", "temperature": 1}, "temperature", "unknown key"),
        ({"component": "talker", "top_kk": 1}, "top_kk", "did you mean 'top_k'"),
        ({"component": "talker", "temperature": 0}, "temperature", "does not fit"),
        ({"component": "talker", "top_p": 1.5}, "top_p", "does not fit"),
        ({"component": "talker", "max_frames": 0}, "max_frames", "does not fit"),
        ({"component": "talker", "batching": "some"}, "batching", "does not fit"),
        ({"component": "talker", "dtype": "int8"}, "dtype", "does not fit"),
        ({"component": "token2wav", "num_steps": "ten"}, "num_steps", "does not fit"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    arguments: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(SetupError, match=words) as refused:
        parse_component_arguments(arguments)
    assert refused.value.field == f"engineArgs.{field}"


@pytest.mark.parametrize(
    ("component", "produces"),
    [
        ("talker", PayloadKind.WAVEFORM),
        ("code2wav", PayloadKind.CODEC_FRAMES),
        ("token2wav", PayloadKind.TEXT),
    ],
)
def test_a_template_that_expects_something_else_is_refused(
    component: str, produces: PayloadKind
) -> None:
    with pytest.raises(SetupError, match="makes exactly one output of kind"):
        TorchEngine(engine_spec({"out": produces}, component=component))
