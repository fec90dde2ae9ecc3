"""What a component is, and which there are.

A component is one part of one model family as a stage: the talker of Qwen3-Omni, say. The engine
finds the family in the checkpoint's `config.json` and makes the component from this table; an
unknown family or part is refused by name. A new family adds its rows here and a folder of its own;
the engine knows none.

The table's functions import a family's code only when it is wanted: that code imports torch.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from omnistage_common.errors import InvalidWeights, SetupError
from omnistage_common.ids import OutputName
from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, EngineSpec, Outputs
from omnistage_stage.engines.torch.arguments import PlacementArguments

if TYPE_CHECKING:
    from omnistage_stage.engines.torch.checkpoints import Checkpoint
    from omnistage_stage.engines.torch.placement import Placement

__all__ = [
    "PRODUCES",
    "TAKES_DEVICE_TENSORS",
    "Component",
    "ComponentFactory",
    "ComponentSpec",
    "find_component",
    "require_ports",
]

PRODUCES: Final = {
    "talker": PayloadKind.CODEC_FRAMES,
    "code2wav": PayloadKind.WAVEFORM,
    "token2wav": PayloadKind.WAVEFORM,
}
"""Component -> the kind of its one output."""

TAKES_DEVICE_TENSORS: Final = frozenset({"code2wav"})
"""Components that read inputs on their device and have done with each before the next. The others keep
on the host what arrives, until they have all that they need."""


class ComponentSpec(Struct, frozen=True, kw_only=True):
    """What a component is told when it is made."""

    spec: EngineSpec
    arguments: PlacementArguments
    """The struct that belongs to the component, see `arguments`."""
    output: OutputName
    """The name of its one output, given by the template."""
    checkpoint: "Checkpoint"
    placement: "Placement"


class Component(Protocol):
    """One part of a model. The methods mean what those of `Engine` mean.

    Nothing heavy happens on the event loop: a component computes in one thread, either by a
    `StepLoop` (requests that step together) or by `WorkerThreads` of size 1 (one after the other).
    """

    @property
    def active(self) -> int:
        """Requests that hold memory of the component."""

    async def load(self) -> None:
        """Loads the component's own weights.

        Raises:
            InvalidWeights: The checkpoint lacks something; names the file and the field.
        """

    async def probe(self) -> None:
        """Computes something small for real."""

    async def run(self, request: EngineRequest, outputs: Outputs) -> EngineResult:
        """Computes one request; lets go of everything when cancelled."""

    async def close(self) -> None:
        """Ends the thread and frees the weights."""


ComponentFactory = Callable[[ComponentSpec], Component]
"""A component's class. Made in the engine's loading thread; making it loads nothing."""


def _qwen3_omni_talker() -> ComponentFactory:
    from omnistage_stage.engines.torch.qwen3_omni import Talker  # noqa: PLC0415

    return Talker


def _qwen3_omni_code2wav() -> ComponentFactory:
    from omnistage_stage.engines.torch.qwen3_omni import Code2Wav  # noqa: PLC0415

    return Code2Wav


def _qwen2_5_omni_talker() -> ComponentFactory:
    from omnistage_stage.engines.torch.qwen2_5_omni import Talker  # noqa: PLC0415

    return Talker


def _qwen2_5_omni_token2wav() -> ComponentFactory:
    from omnistage_stage.engines.torch.qwen2_5_omni import Token2Wav  # noqa: PLC0415

    return Token2Wav


_COMPONENTS: Final[dict[tuple[str, str], Callable[[], ComponentFactory]]] = {
    ("qwen3_omni_moe", "talker"): _qwen3_omni_talker,
    ("qwen3_omni_moe", "code2wav"): _qwen3_omni_code2wav,
    ("qwen2_5_omni", "talker"): _qwen2_5_omni_talker,
    ("qwen2_5_omni", "token2wav"): _qwen2_5_omni_token2wav,
}


def find_component(model_type: str, component: str) -> ComponentFactory:
    """The class for a part of a model family.

    Raises:
        InvalidWeights: The family is not known, or has no such part.
    """
    wanted = _COMPONENTS.get((model_type, component))
    if wanted is not None:
        return wanted()
    parts = sorted(part for family, part in _COMPONENTS if family == model_type)
    if parts:
        raise InvalidWeights(
            f"engineArgs.component: a {model_type} checkpoint has no {component!r};"
            f" it has {', '.join(parts)}",
            field="engineArgs.component",
        )
    families = ", ".join(sorted({family for family, _ in _COMPONENTS}))
    raise InvalidWeights(
        f"config.json: the torch engine does not know model_type {model_type!r};"
        f" it knows {families}",
        field="model",
    )


def require_ports(spec: EngineSpec, *, needed: Collection[str], allowed: Collection[str]) -> None:
    """Checks what the template brings to a component.

    Raises:
        SetupError: A port is missing, or is none of the component's.
    """
    if not spec.consumes:
        return
    ports = set(spec.consumes)
    unknown = sorted(ports.difference(allowed))
    missing = sorted(set(needed).difference(ports))
    if unknown or missing:
        problem = f"brings {unknown[0]!r}" if unknown else f"does not bring {missing[0]!r}"
        raise SetupError(
            f"the template {problem} to stage {spec.stage}, which takes {', '.join(allowed)} and "
            f"needs {', '.join(needed)}",
            field="consumes",
        )
