"""Qwen-Image: a vision-language model encodes the prompt, a VAE of the Wan kind decodes.

A prompt is encoded alone and so never padded: the masks of the pipeline's call are not needed.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch

from omnistage_common.errors import EngineFailed
from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.diffusers.calling import Grid
from omnistage_stage.engines.diffusers.families.family import Embedding, Family, Need
from omnistage_stage.engines.diffusers.families.normalising import denormalised
from omnistage_stage.engines.diffusers.families.patches import fold, patch_grid, size_of, unfold

__all__ = ["FAMILY", "QwenImage"]


class QwenImage(Family):
    """`QwenImagePipeline`."""

    kind = PayloadKind.IMAGE
    embeddings = (
        Embedding(name="prompt_embeds"),
        Embedding(name="negative_prompt_embeds", need=Need.OPTIONAL),
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
        made = {"prompt_embeds": _encoded(pipeline, prompt, values)}
        if negative_prompt is not None and self.is_guided(values, negative=True):
            made["negative_prompt_embeds"] = _encoded(pipeline, negative_prompt, values)
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
        scaled = denormalised(vae, planes.to(vae.dtype))
        image = vae.decode(scaled, return_dict=False)[0][:, :, 0]
        return pipeline.image_processor.postprocess(image, output_type="np")[0]

    def sample_embeddings(self, pipeline: Any) -> dict[str, Any]:
        """See `Family.sample_embeddings`."""
        return {"prompt_embeds": torch.zeros(1, 8, pipeline.transformer.config.joint_attention_dim)}

    def sample_latents(self, pipeline: Any) -> Any:
        """See `Family.sample_latents`."""
        return torch.zeros(1, 4, 4, pipeline.vae.config.z_dim * 4)


def _encoded(pipeline: Any, prompt: str, values: Mapping[str, Any]) -> Any:
    row, mask = pipeline.encode_prompt(
        prompt=prompt, max_sequence_length=values["max_sequence_length"]
    )
    if mask is not None:
        raise EngineFailed("the tokenizer padded a prompt that is alone; its mask cannot travel")
    return row


FAMILY: Final = QwenImage()
