"""From a stage's spec to its loaded part of a pipeline, cheapest checks first.

The model folder is read, and the component checked against it, before torch and diffusers are
imported; `engineArgs` are checked against the pipeline's class before weights are read.
"""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from omnistage_common.errors import MissingDependency, SetupError
from omnistage_common.ids import OutputName
from omnistage_common.payloads import PayloadKind, Tensor
from omnistage_stage.engines.arguments import sole_output
from omnistage_stage.engines.diffusers.arguments import (
    BATCH_OF_HALF_PRECISION,
    Component,
    DiffusersArguments,
)
from omnistage_stage.engines.diffusers.calling import PipelineCall
from omnistage_stage.engines.diffusers.families import Family, family_of, require_family
from omnistage_stage.engines.diffusers.folder import needs_of, read_model_folder
from omnistage_stage.engines.protocol import EngineSpec
from omnistage_stage.weights import logged, weights_of

if TYPE_CHECKING:
    from omnistage_stage.engines.diffusers.components import Part

__all__ = ["Assembled", "assemble", "check_outputs"]

_RESULTS: Final = (PayloadKind.IMAGE, PayloadKind.VIDEO, PayloadKind.WAVEFORM)


class Assembled(Struct, frozen=True, kw_only=True):
    """A part that can compute."""

    part: "Part"
    call: PipelineCall
    max_batch: int
    """Jobs in one call."""
    copied: Callable[[Mapping[OutputName, tuple[Tensor, ...]]], dict[str, tuple[Any, ...]]]
    """Tensors as torch tensors with memory of their own."""
    set_threads: Callable[[int], None]
    """Sets the number of threads of CPU kernels, for the thread that calls it."""


def check_outputs(spec: EngineSpec, component: Component) -> None:
    """Checks what the template wants against what a component makes, as far as is known without it.

    Raises:
        SetupError: Something else is expected, or input would come in chunks.
    """
    streams = [name for name, port in spec.consumes.items() if port.streams]
    if streams:
        raise SetupError(
            f"stage {spec.stage} takes {streams[0]} whole: the edge's mode must be full",
            field="consumes",
        )
    match component:
        case Component.WHOLE | Component.DECODER:
            kinds = list(spec.produces.values())
            wanted = kinds[0] if len(kinds) == 1 and kinds[0] in _RESULTS else PayloadKind.IMAGE
            sole_output(spec, wanted)
        case Component.DENOISER:
            sole_output(spec, PayloadKind.LATENTS)
        case Component.TEXT_ENCODER:
            odd = [n for n, kind in spec.produces.items() if kind is not PayloadKind.EMBEDDINGS]
            if odd or not spec.produces:
                raise SetupError(
                    f"stage {spec.stage} encodes text and produces embeddings only, by its "
                    f"template also {', '.join(odd) or 'nothing'}",
                    field="produces",
                )


def assemble(spec: EngineSpec, arguments: DiffusersArguments) -> Assembled:
    """Loads what a stage computes with. Takes seconds to minutes and blocks.

    Raises:
        SetupError: Weights, packages, arguments or template are not right; says which and what to
            do.
    """
    component = arguments.component
    weights = weights_of(spec.model)
    if weights.local:
        # Read when the libraries are imported: nobody has to be asked for anything.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    folder = read_model_folder(weights.prepare(logged))
    if component is not Component.WHOLE:
        require_family(folder.pipeline)
    needs = needs_of(component, folder.submodules)
    folder.require(needs)
    try:
        from omnistage_stage.engines.diffusers import components, loading, tensors  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependency(
            f"diffusers cannot be imported ({error}). Install it: pip install "
            "'omnistage[diffusers]'"
        ) from error
    loading.quieten()
    of = loading.pipeline_class(folder)
    call = PipelineCall(of.__call__, arguments.defaults, arguments.call)
    family = family_of(folder.pipeline)
    if family is not None:
        _check_family(spec, component, family)
    dtype = loading.dtype_of(arguments)
    pipeline = loading.load_pipeline(folder, needs, arguments, of)
    return Assembled(
        part=components.part_of(pipeline, call, dtype, component, family, spec.produces),
        call=call,
        max_batch=_max_batch(arguments, dtype, known=family is not None),
        copied=tensors.copied,
        set_threads=tensors.set_threads,
    )


def _check_family(spec: EngineSpec, component: Component, family: Family) -> None:
    """Checks the template against what is known of the model."""
    if component is Component.TEXT_ENCODER:
        made = {OutputName(embedding.name) for embedding in family.embeddings}
        if made != set(spec.produces):
            raise SetupError(
                f"stage {spec.stage} must produce {', '.join(sorted(made))} for this model; its "
                f"template says {', '.join(sorted(spec.produces))}",
                field="produces",
            )
    elif component is not Component.DENOISER:
        sole_output(spec, family.kind)


def _max_batch(arguments: DiffusersArguments, dtype: str, *, known: bool) -> int:
    if arguments.component in {Component.TEXT_ENCODER, Component.DECODER}:
        return 1
    rounded = known and dtype != "float32"
    return arguments.max_batch or (BATCH_OF_HALF_PRECISION if rounded else 1)
