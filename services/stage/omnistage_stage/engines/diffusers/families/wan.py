"""Wan 2.1 and 2.2, text to video: UMT5 encodes, one or two transformers denoise."""

from collections.abc import Mapping
from math import lcm
from typing import Any, Final

import torch

from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.diffusers.calling import Grid
from omnistage_stage.engines.diffusers.families.family import Embedding, Family, Need
from omnistage_stage.engines.diffusers.families.normalising import denormalised

__all__ = ["FAMILY", "Wan"]

_CHECKED: Final = 16
"""The pipeline itself refuses sizes that are no multiple of it."""


class Wan(Family):
    """`WanPipeline`."""

    kind = PayloadKind.VIDEO
    embeddings = (
        Embedding(name="prompt_embeds"),
        Embedding(name="negative_prompt_embeds", need=Need.GUIDED),
    )

    def grid(self, pipeline: Any) -> Grid:
        """See `Family.grid`."""
        _, *patch = _transformer(pipeline).config.patch_size
        sides = [pipeline.vae_scale_factor_spatial * side for side in patch]
        return Grid(pixels=lcm(_CHECKED, *sides), frames=pipeline.vae_scale_factor_temporal)

    def encode(
        self, pipeline: Any, prompt: str, negative_prompt: str | None, values: Mapping[str, Any]
    ) -> dict[str, Any]:
        """See `Family.encode`."""
        row, negative = pipeline.encode_prompt(
            prompt=prompt,
            negative_prompt=negative_prompt,
            do_classifier_free_guidance=self.is_guided(
                values, negative=negative_prompt is not None
            ),
            max_sequence_length=values["max_sequence_length"],
        )
        made = {"prompt_embeds": row}
        return made if negative is None else made | {"negative_prompt_embeds": negative}

    def decode(self, pipeline: Any, latents: Any, values: Mapping[str, Any], seed: int) -> Any:  # noqa: ARG002
        """See `Family.decode`."""
        scaled = denormalised(pipeline.vae, latents.to(pipeline.vae.dtype))
        video = pipeline.vae.decode(scaled, return_dict=False)[0]
        return pipeline.video_processor.postprocess_video(video, output_type="np")[0]

    def sample_embeddings(self, pipeline: Any) -> dict[str, Any]:
        """See `Family.sample_embeddings`."""
        return {"prompt_embeds": torch.zeros(1, 8, _transformer(pipeline).config.text_dim)}

    def sample_latents(self, pipeline: Any) -> Any:
        """See `Family.sample_latents`."""
        return torch.zeros(1, pipeline.vae.config.z_dim, 1, 4, 4)

    def rate_hz(self, pipeline: Any) -> int:  # noqa: ARG002
        """See `Family.rate_hz`."""
        return 16


def _transformer(pipeline: Any) -> Any:
    return pipeline.transformer if pipeline.transformer is not None else pipeline.transformer_2


FAMILY: Final = Wan()
