"""Which tiny checkpoints there are, and how the cache gets to make one.

A family is a module with one function `write(folder)`; it is imported when its checkpoint is made,
and brings torch and the model libraries with it. A fixed seed makes the same weights every time.
"""

import importlib
from importlib import metadata
from pathlib import Path
from typing import Final

from msgspec import Struct

from omnistage_common.errors import InvalidWeights, MissingDependency, truncated
from omnistage_stage.weights.cache import Recipe
from omnistage_stage.weights.progress import Progress
from omnistage_stage.weights.quieting import quiet_transformers

__all__ = ["TINY_NAMES", "tiny_recipe"]


class _Family(Struct, frozen=True, kw_only=True):
    module: str
    """Module in this folder that writes the checkpoint."""
    library: str
    """Distribution whose format it is; another version of it is another checkpoint."""
    extra: str
    """Extra of our own distribution that installs the library."""
    recipe_version: int = 1
    """Rises whenever the module would write something else."""
    seed: int = 1
    """Of the random weights; chosen so that answers are neither empty nor endless."""


_FAMILIES: Final = {
    "flux": _Family(module="flux", library="diffusers", extra="diffusers"),
    "ltx": _Family(module="ltx", library="diffusers", extra="diffusers"),
    "qwen-image": _Family(module="qwen_image", library="diffusers", extra="diffusers"),
    "qwen2.5-omni": _Family(
        module="qwen2_5_omni", library="transformers", extra="torch", recipe_version=2, seed=3
    ),
    "qwen3-omni": _Family(
        module="qwen3_omni", library="transformers", extra="torch", recipe_version=2
    ),
    "stable-audio": _Family(module="stable_audio", library="diffusers", extra="diffusers"),
    "stable-diffusion-3": _Family(
        module="stable_diffusion_3", library="diffusers", extra="diffusers"
    ),
    "wan": _Family(module="wan", library="diffusers", extra="diffusers"),
}

TINY_NAMES: Final = tuple(sorted(_FAMILIES))
"""What may stand after `tiny://`."""


def tiny_recipe(name: str) -> Recipe:
    """How to make a tiny checkpoint.

    Args:
        name: One of `TINY_NAMES`.

    Raises:
        InvalidWeights: There is no tiny checkpoint of that name.
        MissingDependency: The library in whose format it is written is not installed.
    """
    family = _FAMILIES.get(name)
    if family is None:
        known = ", ".join(f"tiny://{known}" for known in TINY_NAMES)
        raise InvalidWeights(
            f"tiny://{name} is not a tiny checkpoint; these are: {known}", field="model"
        )
    try:
        version = metadata.version(family.library)
    except metadata.PackageNotFoundError as error:
        raise _missing(name, family, f"{family.library} is not installed") from error

    def build(target: Path, progress: Progress) -> None:
        progress(f"making the tiny checkpoint {name} (random weights)")
        _write(name, family, target)

    return Recipe(
        name=f"tiny-{name}",
        version=version,
        recipe_version=family.recipe_version,
        build=build,
    )


def _write(name: str, family: _Family, target: Path) -> None:
    try:
        import torch  # noqa: PLC0415

        module = importlib.import_module(f"omnistage_stage.weights.tiny.{family.module}")
    except ImportError as error:
        raise _missing(name, family, f"{error}") from error
    try:
        with quiet_transformers(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(family.seed)
            module.write(target)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise InvalidWeights(
            f"tiny://{name} cannot be made by the installed {family.library}: "
            f"{truncated(str(error))}. Install the version that this release pins: "
            f"pip install 'omnistage[{family.extra}]'",
            field="model",
        ) from error


def _missing(name: str, family: _Family, reason: str) -> MissingDependency:
    return MissingDependency(
        f"tiny://{name} cannot be made: {reason}. "
        f"Install it: pip install 'omnistage[{family.extra}]'",
        field="model",
    )
