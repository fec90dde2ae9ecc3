"""Which parts of which models there are, and what is said about those that are not."""

import pytest

from fakes.engine_io import engine_spec
from omnistage_common.errors import InvalidWeights, SetupError
from omnistage_common.ids import OutputName
from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.protocol import EngineSpec, InputSpec
from omnistage_stage.engines.torch.components import find_component, require_ports


def brings(*ports: str) -> EngineSpec:
    """The spec of a stage to which a template brings these."""
    spec = engine_spec({"codes": PayloadKind.CODEC_FRAMES})
    return EngineSpec(
        stage=spec.stage,
        model=spec.model,
        args=spec.args,
        max_running=spec.max_running,
        produces=spec.produces,
        consumes={OutputName(port): InputSpec(kind=PayloadKind.TOKENS) for port in ports},
    )


def test_an_unknown_family_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidWeights, match="'llama'; it knows qwen2_5_omni, qwen3_omni_moe"):
        find_component("llama", "talker")


def test_a_part_that_a_family_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(InvalidWeights, match="no 'token2wav'; it has code2wav, talker") as refused:
        find_component("qwen3_omni_moe", "token2wav")
    assert refused.value.field == "engineArgs.component"


@pytest.mark.parametrize(
    ("ports", "words"),
    [
        (("tokens", "pixels"), "brings 'pixels'"),
        (("hidden",), "does not bring 'tokens'"),
    ],
)
def test_ports_that_do_not_fit_are_refused_by_name(ports: tuple[str, ...], words: str) -> None:
    with pytest.raises(SetupError, match=words) as refused:
        require_ports(brings(*ports), needed=("tokens",), allowed=("tokens", "hidden"))
    assert refused.value.field == "consumes"


@pytest.mark.parametrize("ports", [(), ("tokens",), ("tokens", "hidden")])
def test_ports_that_fit_pass(ports: tuple[str, ...]) -> None:
    require_ports(brings(*ports), needed=("tokens",), allowed=("tokens", "hidden"))
