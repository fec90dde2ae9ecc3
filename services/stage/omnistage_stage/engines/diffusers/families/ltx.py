"""LTX-Video: T5 encodes with masks; later checkpoints add noise before they decode.

Where the VAE is conditioned on a time step, the pipeline draws that noise from the same generator
that the latents began with. A decoder has only the seed, so it draws the first noise again, drops
it, and draws the second.
"""

from collections.abc import Mapping
from math import lcm
from typing import Any, Final

import torch

from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.diffusers.calling import Grid
from omnistage_stage.engines.diffusers.families.family import Embedding, Family, Need

__all__ = ["FAMILY", "Ltx"]

_CHECKED: Final = 32
"""The pipeline itself refuses sizes that are no multiple of it."""


class Ltx(Family):
    """`LTXPipeline`."""

    kind = PayloadKind.VIDEO
    embeddings = (
        Embedding(name="prompt_embeds"),
        Embedding(name="prompt_attention_mask", is_mask=True),
        Embedding(name="negative_prompt_embeds", need=Need.GUIDED),
        Embedding(name="negative_prompt_attention_mask", need=Need.GUIDED, is_mask=True),
    )

    def grid(self, pipeline: Any) -> Grid:
        """See `Family.grid`."""
        side = pipeline.vae_spatial_compression_ratio * pipeline.transformer_spatial_patch_size
        return Grid(pixels=lcm(_CHECKED, side), frames=pipeline.vae_temporal_compression_ratio)

    def encode(
        self, pipeline: Any, prompt: str, negative_prompt: str | None, values: Mapping[str, Any]
    ) -> dict[str, Any]:
        """See `Family.encode`."""
        names = (embedding.name for embedding in self.embeddings)
        made = pipeline.encode_prompt(
            prompt=prompt,
            negative_prompt=negative_prompt,
            do_classifier_free_guidance=self.is_guided(
                values, negative=negative_prompt is not None
            ),
            max_sequence_length=values["max_sequence_length"],
        )
        return {name: one for name, one in zip(names, made, strict=True) if one is not None}

    def unfold(self, pipeline: Any, latents: Any, values: Mapping[str, Any]) -> Any:
        """See `Family.unfold`."""
        side = pipeline.vae_spatial_compression_ratio * pipeline.transformer_spatial_patch_size
        frames = (values["num_frames"] - 1) // pipeline.vae_temporal_compression_ratio + 1
        return latents.view(
            latents.shape[0],
            frames // pipeline.transformer_temporal_patch_size,
            values["height"] // side,
            values["width"] // side,
            latents.shape[2],
        )

    def decode(self, pipeline: Any, latents: Any, values: Mapping[str, Any], seed: int) -> Any:
        """See `Family.decode`."""
        vae = pipeline.vae
        _, *extents, _ = latents.shape
        planes = pipeline._unpack_latents(  # noqa: SLF001
            latents.flatten(1, 3),
            *extents,
            pipeline.transformer_spatial_patch_size,
            pipeline.transformer_temporal_patch_size,
        )
        planes = pipeline._denormalize_latents(  # noqa: SLF001
            planes, vae.latents_mean, vae.latents_std, vae.config.scaling_factor
        ).to(vae.dtype)
        moment = None
        if vae.config.timestep_conditioning:
            moment = torch.tensor([values["decode_timestep"]]).to(planes)
            planes = _noised(planes, values, seed)
        video = vae.decode(planes, moment, return_dict=False)[0]
        return pipeline.video_processor.postprocess_video(video, output_type="np")[0]

    def sample_embeddings(self, pipeline: Any) -> dict[str, Any]:
        """See `Family.sample_embeddings`."""
        return {
            "prompt_embeds": torch.zeros(1, 8, pipeline.transformer.config.caption_channels),
            "prompt_attention_mask": torch.ones(1, 8, dtype=torch.bool),
        }

    def sample_latents(self, pipeline: Any) -> Any:
        """See `Family.sample_latents`."""
        patch = pipeline.transformer_spatial_patch_size**2
        channels = (
            pipeline.vae.config.latent_channels * patch * pipeline.transformer_temporal_patch_size
        )
        return torch.zeros(1, 1, 2, 2, channels)

    def rate_hz(self, pipeline: Any) -> int:  # noqa: ARG002
        """See `Family.rate_hz`."""
        return 25


def _noised(planes: Any, values: Mapping[str, Any], seed: int) -> Any:
    generator = torch.Generator("cpu").manual_seed(seed)
    torch.randn(planes.shape, generator=generator, dtype=torch.float32)
    noise = torch.randn(planes.shape, generator=generator, dtype=planes.dtype).to(planes.device)
    scale = values["decode_noise_scale"]
    share = torch.tensor([values["decode_timestep"] if scale is None else scale]).to(planes)
    share = share[:, None, None, None, None]
    return (1 - share) * planes + share * noise


FAMILY: Final = Ltx()
