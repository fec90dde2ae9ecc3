"""Pipeline classes that can be split over stages; each has a module that says how.

A family is found by the name of its pipeline's class. Any other class runs whole.
"""

from importlib import import_module
from typing import Final

from omnistage_common.errors import SetupError
from omnistage_stage.engines.diffusers.families.family import Embedding, Family, Need

__all__ = ["FAMILIES", "Embedding", "Family", "Need", "family_of", "require_family"]

FAMILIES: Final = {
    "FluxPipeline": "flux",
    "LTXPipeline": "ltx",
    "QwenImagePipeline": "qwen_image",
    "StableAudioPipeline": "stable_audio",
    "StableDiffusion3Pipeline": "stable_diffusion_3",
    "WanPipeline": "wan",
}
"""Name of a pipeline class -> module of this package."""


def family_of(pipeline: str) -> Family | None:
    """How to split a pipeline class; None when that is not known. Imports torch."""
    if pipeline not in FAMILIES:
        return None
    found: Family = import_module(f"{__name__}.{FAMILIES[pipeline]}").FAMILY
    return found


def require_family(pipeline: str) -> None:
    """Checks that a pipeline class can be split.

    Raises:
        SetupError: It cannot; names those that can.
    """
    if pipeline not in FAMILIES:
        raise SetupError(
            f"engineArgs.component: {pipeline} cannot be split; these can: "
            f"{', '.join(sorted(FAMILIES))}. Use component: whole",
            field="engineArgs.component",
        )
