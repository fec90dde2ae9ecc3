"""`engineArgs` of the torch engine: one struct per component.

`component` comes first and decides which others there are, so that a talker's argument on a vocoder
is refused by name instead of being ignored. None leaves the choice to the model's own code: its
default where the component is made, never a guess here.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from omnistage_common.errors import SetupError
from omnistage_stage.engines.arguments import parse_arguments

__all__ = [
    "ComponentName",
    "PlacementArguments",
    "TalkerArguments",
    "Token2WavArguments",
    "parse_component_arguments",
]

ComponentName = Literal["talker", "code2wav", "token2wav"]
Positive = Annotated[int, Meta(ge=1)]


class PlacementArguments(Struct, frozen=True, kw_only=True):
    """What every component takes; all there is for `code2wav`."""

    component: str = ""
    """Which part of the model this stage is."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Auto: float32 on a CPU, bfloat16 on a GPU."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1` …; auto: the first GPU, or the CPU where there is none."""
    omp_threads: Positive = 1
    """Threads of CPU kernels. More than one needs as many idle cores."""


class TalkerArguments(PlacementArguments, frozen=True, kw_only=True):
    """`engineArgs` of a talker. What is None is as in the model's own `generate`."""

    batching: Literal["auto", "exact", "padded"] = "auto"
    """How the steps of several requests are computed together. Exact: each request by kernels of the
    shape it would meet alone, so that its codes are bit for bit what they are alone. Padded: in one
    forward, which is faster with many requests and equal up to rounding. Auto: exact in float32 on
    a CPU, padded otherwise."""
    do_sample: bool | None = None
    temperature: Annotated[float, Meta(gt=0)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    """0: off."""
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    max_frames: Positive | None = None
    """Codec frames after which speech ends whatever the model says."""
    voice: str | None = None
    """Speaker where a request names none; None: the first of the checkpoint."""


class Token2WavArguments(PlacementArguments, frozen=True, kw_only=True):
    """`engineArgs` of a flow-matching vocoder. What is None is as in the model's own `generate`."""

    num_steps: Positive | None = None
    """Steps of the ODE solver."""
    guidance_scale: Annotated[float, Meta(ge=0)] | None = None
    sway_coefficient: float | None = None
    voice: str | None = None
    """Speaker where a request names none; None: the first of the checkpoint."""


_STRUCTS: Final[dict[str, type[PlacementArguments]]] = {
    "code2wav": PlacementArguments,
    "talker": TalkerArguments,
    "token2wav": Token2WavArguments,
}


def parse_component_arguments(arguments: Mapping[str, Any]) -> PlacementArguments:
    """The engine's arguments, as the struct of the component that they name.

    Raises:
        SetupError: No or an unknown component, an unknown key, or a value that does not fit.
    """
    component = arguments.get("component")
    struct = _STRUCTS.get(component) if isinstance(component, str) else None
    if struct is None and component is not None:
        raise SetupError(
            f"engineArgs.component: {component!r} is none of {', '.join(sorted(_STRUCTS))}",
            field="engineArgs.component",
        )
    # Without a component, a misspelt key is the likelier mistake and is named first.
    parsed = parse_arguments(arguments, struct or PlacementArguments)
    if struct is None:
        raise SetupError(
            f"engineArgs.component is missing; it is one of {', '.join(sorted(_STRUCTS))}",
            field="engineArgs.component",
        )
    return parsed
