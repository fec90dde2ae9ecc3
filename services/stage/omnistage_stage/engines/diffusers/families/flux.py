"""Flux: CLIP for a pooled embedding, T5 for the row; guidance is distilled, true guidance optional."""

from collections.abc import Mapping
from typing import Any, Final

import torch

from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.diffusers.calling import Grid
from omnistage_stage.engines.diffusers.families.family import Embedding, Family, Need
from omnistage_stage.engines.diffusers.families.patches import fold, patch_grid, size_of, unfold

__all__ = ["FAMILY", "Flux"]


class Flux(Family):
    """`FluxPipeline`."""

    kind = PayloadKind.IMAGE
    embeddings = (
        Embedding(name="prompt_embeds"),
        Embedding(name="pooled_prompt_embeds"),
        Embedding(name="negative_prompt_embeds", need=Need.OPTIONAL),
        Embedding(name="negative_pooled_prompt_embeds", need=Need.OPTIONAL),
    )

    def grid(self, pipeline: Any) -> Grid:
        """See `Family.grid`."""
        return patch_grid(pipeline)

    def is_guided(self, values: Mapping[str, Any], *, negative: bool) -> bool:
        """See `Family.is_guided`."""
        return bool(values["true_cfg_scale"] > 1) and negative

    def encode(
        self, pipeline: Any, prompt: str, negative_prompt: str | None, values: Mapping[str, Any]
    ) -> dict[str, Any]:
        """See `Family.encode`."""
        length = values["max_sequence_length"]
        row, pooled, _ = pipeline.encode_prompt(
            prompt=prompt, prompt_2=values["prompt_2"], max_sequence_length=length
        )
        made = {"prompt_embeds": row, "pooled_prompt_embeds": pooled}
        if self.is_guided(values, negative=negative_prompt is not None):
            row, pooled, _ = pipeline.encode_prompt(
                prompt=negative_prompt,
                prompt_2=values["negative_prompt_2"],
                max_sequence_length=length,
            )
            made |= {"negative_prompt_embeds": row, "negative_pooled_prompt_embeds": pooled}
        return made

    def unfold(self, pipeline: Any, latents: Any, values: Mapping[str, Any]) -> Any:
        """See `Family.unfold`."""
        return unfold(pipeline, latents, values)

    def decode(self, pipeline: Any, latents: Any, values: Mapping[str, Any], seed: int) -> Any:  # noqa: ARG002
        """See `Family.decode`."""
        vae = pipeline.vae
        height, width = size_of(pipeline, latents)
        planes = pipeline._unpack_latents(  # noqa: SLF001
            fold(latents), height, width, pipeline.vae_scale_factor
        )
        scaled = (planes.to(vae.dtype) / vae.config.scaling_factor) + vae.config.shift_factor
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
        return torch.zeros(1, 4, 4, pipeline.vae.config.latent_channels * 4)


FAMILY: Final = Flux()
