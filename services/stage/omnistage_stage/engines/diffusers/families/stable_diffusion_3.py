"""Stable Diffusion 3 and 3.5: two CLIP encoders and T5, one row of embeddings and a pooled one."""

from collections.abc import Mapping
from typing import Any, Final

import torch

from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.diffusers.calling import Grid
from omnistage_stage.engines.diffusers.families.family import Embedding, Family, Need

__all__ = ["FAMILY", "StableDiffusion3"]


class StableDiffusion3(Family):
    """`StableDiffusion3Pipeline`."""

    kind = PayloadKind.IMAGE
    embeddings = (
        Embedding(name="prompt_embeds"),
        Embedding(name="pooled_prompt_embeds"),
        Embedding(name="negative_prompt_embeds", need=Need.GUIDED),
        Embedding(name="negative_pooled_prompt_embeds", need=Need.GUIDED),
    )

    def grid(self, pipeline: Any) -> Grid:
        """See `Family.grid`."""
        return Grid(pixels=pipeline.vae_scale_factor * pipeline.patch_size)

    def encode(
        self, pipeline: Any, prompt: str, negative_prompt: str | None, values: Mapping[str, Any]
    ) -> dict[str, Any]:
        """See `Family.encode`."""
        names = (
            "prompt_embeds",
            "negative_prompt_embeds",
            "pooled_prompt_embeds",
            "negative_pooled_prompt_embeds",
        )
        made = pipeline.encode_prompt(
            prompt=prompt,
            prompt_2=values["prompt_2"],
            prompt_3=values["prompt_3"],
            negative_prompt=negative_prompt,
            negative_prompt_2=values["negative_prompt_2"],
            negative_prompt_3=values["negative_prompt_3"],
            do_classifier_free_guidance=self.is_guided(
                values, negative=negative_prompt is not None
            ),
            clip_skip=values["clip_skip"],
            max_sequence_length=values["max_sequence_length"],
        )
        return {name: one for name, one in zip(names, made, strict=True) if one is not None}

    def decode(self, pipeline: Any, latents: Any, values: Mapping[str, Any], seed: int) -> Any:  # noqa: ARG002
        """See `Family.decode`."""
        vae = pipeline.vae
        scaled = (latents.to(vae.dtype) / vae.config.scaling_factor) + vae.config.shift_factor
        image = vae.decode(scaled, return_dict=False)[0]
        return pipeline.image_processor.postprocess(image, output_type="np")[0]

    def sample_embeddings(self, pipeline: Any) -> dict[str, Any]:
        """See `Family.sample_embeddings`."""
        config = pipeline.transformer.config
        return {
            "prompt_embeds": torch.zeros(1, 8, config.joint_attention_dim),
            "pooled_prompt_embeds": torch.zeros(1, config.pooled_projection_dim),
        }

    def sample_latents(self, pipeline: Any) -> Any:
        """See `Family.sample_latents`."""
        return torch.zeros(1, pipeline.vae.config.latent_channels, 8, 8)


FAMILY: Final = StableDiffusion3()
