"""What image families with 2x2 patches share: latents folded into one row of patches, and back."""

from collections.abc import Mapping
from typing import Any

from omnistage_stage.engines.diffusers.calling import Grid

__all__ = ["fold", "patch_grid", "size_of", "unfold"]


def patch_grid(pipeline: Any) -> Grid:
    """Sizes that make whole patches."""
    return Grid(pixels=pipeline.vae_scale_factor * 2)


def unfold(pipeline: Any, latents: Any, values: Mapping[str, Any]) -> Any:
    """[batch, patches, channels] -> [batch, rows, columns, channels]."""
    default = pipeline.default_sample_size * pipeline.vae_scale_factor
    height, width = (values[side] or default for side in ("height", "width"))
    pixels = pipeline.vae_scale_factor * 2
    return latents.view(latents.shape[0], height // pixels, width // pixels, latents.shape[2])


def fold(latents: Any) -> Any:
    """[batch, rows, columns, channels] -> [batch, patches, channels]."""
    return latents.flatten(1, 2)


def size_of(pipeline: Any, latents: Any) -> tuple[int, int]:
    """Height and width in pixels of unfolded latents."""
    pixels = pipeline.vae_scale_factor * 2
    return latents.shape[1] * pixels, latents.shape[2] * pixels
