"""From a model folder to a pipeline that holds only what its component needs (foreign: diffusers).

`whole` is diffusers' own loading. A component is put together from the submodules that it computes
with and the shells of others, so a text encoder's process never reads the transformer's weights.
"""

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from diffusers import DiffusionPipeline

from omnistage_common.errors import InvalidWeights, SetupError, truncated
from omnistage_stage.engines.diffusers.arguments import Component, DiffusersArguments
from omnistage_stage.engines.diffusers.folder import ModelFolder, Needs, Submodule
from omnistage_stage.engines.diffusers.shells import Shell
from omnistage_stage.engines.diffusers.tensors import torch_type

__all__ = ["device_of", "dtype_of", "load_pipeline", "pipeline_class", "quieten"]


def quieten() -> None:
    """Keeps diffusers and transformers from drawing bars and from repeating what we know."""
    diffusers.utils.logging.set_verbosity_error()
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def device_of(arguments: DiffusersArguments) -> str:
    """Where to compute.

    Raises:
        SetupError: There is no such device.
    """
    found = torch.cuda.device_count()
    if arguments.device == "auto":
        return "cuda" if found else "cpu"
    _, _, index = arguments.device.partition(":")
    if arguments.device != "cpu" and int(index or 0) >= found:
        raise SetupError(
            f"engineArgs.device: {arguments.device} is not there; torch sees {found} GPUs",
            field="engineArgs.device",
        )
    return arguments.device


def dtype_of(arguments: DiffusersArguments) -> str:
    """What type to compute in."""
    if arguments.dtype != "auto":
        return arguments.dtype
    return "float32" if device_of(arguments) == "cpu" else "bfloat16"


def pipeline_class(folder: ModelFolder) -> Any:
    """The class that `model_index.json` names.

    Raises:
        InvalidWeights: This version of diffusers has none of that name.
    """
    found = getattr(diffusers, folder.pipeline, None)
    if not isinstance(found, type) or not issubclass(found, DiffusionPipeline):
        raise InvalidWeights(
            f"{folder.path}: model_index.json: _class_name {folder.pipeline!r} is no pipeline of "
            f"diffusers {diffusers.__version__}",
            field="model",
        )
    return found


def load_pipeline(folder: ModelFolder, needs: Needs, arguments: DiffusersArguments, of: Any) -> Any:
    """Loads a pipeline, or a component's part of it, onto its device.

    Args:
        folder: Where the files that `needs` names have been found.
        needs: What to load.
        arguments: The stage's `engineArgs`.
        of: The pipeline's class.

    Raises:
        InvalidWeights: A file is broken, or does not fit the class that it is named for.
        SetupError: The VAE cannot decode as `engineArgs` want.
    """
    dtype = torch_type(dtype_of(arguments))
    with _foreign_warnings_aside():
        if arguments.component is Component.WHOLE:
            pipeline = _whole(folder, dtype)
        else:
            pipeline = _part(folder, needs, dtype, of)
    pipeline.to(device_of(arguments))
    pipeline.set_progress_bar_config(disable=True)
    _set_decoding(pipeline, arguments)
    return pipeline


def _whole(folder: ModelFolder, dtype: Any) -> Any:
    with _as_invalid_weights(folder.path, folder.pipeline):
        return DiffusionPipeline.from_pretrained(
            folder.path, dtype=dtype, use_safetensors=True, local_files_only=True
        )


def _part(folder: ModelFolder, needs: Needs, dtype: Any, of: Any) -> Any:
    wanted = signature(of.__init__).parameters
    modules = {name: None for name in folder.submodules if name in wanted}
    options = {name: value for name, value in folder.options.items() if name in wanted}
    for name in (*needs.loaded, *needs.shapes):
        submodule = folder.submodules[name]
        with _as_invalid_weights(folder.path / name, submodule.class_name):
            modules[name] = _submodule(folder, submodule, dtype, shell=name in needs.shapes)
    with _as_invalid_weights(folder.path, folder.pipeline):
        return of(**_absent(of) | modules | options)


def _absent(of: Any) -> dict[str, None]:
    """None for every parameter of a constructor that has no default."""
    parameters = signature(of.__init__).parameters.values()
    return {p.name: None for p in parameters if p.name != "self" and p.default is p.empty}


def _submodule(folder: ModelFolder, submodule: Submodule, dtype: Any, *, shell: bool) -> Any:
    where = folder.path / submodule.name
    of = _submodule_class(submodule)
    if shell:
        return Shell(of, where)
    if issubclass(of, transformers.PreTrainedModel):
        return of.from_pretrained(where, dtype=dtype, use_safetensors=True, local_files_only=True)
    if issubclass(of, torch.nn.Module):
        return of.from_pretrained(where, dtype=dtype, use_safetensors=True, local_files_only=True)
    return of.from_pretrained(where, local_files_only=True)


def _submodule_class(submodule: Submodule) -> Any:
    if hasattr(diffusers.pipelines, submodule.library):
        library = getattr(diffusers.pipelines, submodule.library)
    elif submodule.library in {"diffusers", "transformers"}:
        library = importlib.import_module(submodule.library)
    else:
        raise ValueError(f"library {submodule.library!r} is neither diffusers nor transformers")
    found = getattr(library, submodule.class_name, None)
    if not isinstance(found, type):
        raise ValueError(f"{submodule.library} has no class {submodule.class_name}")  # noqa: TRY004
    return found


def _set_decoding(pipeline: Any, arguments: DiffusersArguments) -> None:
    vae = getattr(pipeline, "vae", None)
    for wanted, name in ((arguments.vae_tiling, "tiling"), (arguments.vae_slicing, "slicing")):
        if not wanted:
            continue
        enable = getattr(vae, f"enable_{name}", None)
        if isinstance(vae, Shell) or enable is None:
            raise SetupError(
                f"engineArgs.vae_{name}: this stage decodes with {type(vae).__name__}, which "
                f"cannot do it",
                field=f"engineArgs.vae_{name}",
            )
        enable()


@contextmanager
def _as_invalid_weights(where: Path, class_name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        kind = type(error).__name__
        raise InvalidWeights(
            f"{where} cannot be loaded as {class_name}: {kind}: {truncated(str(error))}",
            field="model",
        ) from error


@contextmanager
def _foreign_warnings_aside() -> Iterator[None]:
    """Leaves out what diffusers and torch say about themselves while they load."""
    with warnings.catch_warnings():
        # The audio VAE is built with the older of torch's two weight norms.
        warnings.filterwarnings("ignore", message=r".*weight_norm.* is deprecated")
        yield
