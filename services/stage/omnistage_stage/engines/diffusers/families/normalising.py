"""Latents back on the scale that a VAE of the Wan kind was trained on, as those pipelines do it."""

from typing import Any

import torch

__all__ = ["denormalised"]


def denormalised(vae: Any, latents: Any) -> Any:
    """Latents [batch, channels, frames, height, width] times deviation, plus mean, by channel."""
    shape = (1, vae.config.z_dim, 1, 1, 1)
    mean, deviation = (
        torch.tensor(values).view(shape).to(latents.device, latents.dtype)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    # Divided by the inverse, not multiplied: the last bits are the pipelines'.
    return latents / (1.0 / deviation) + mean
