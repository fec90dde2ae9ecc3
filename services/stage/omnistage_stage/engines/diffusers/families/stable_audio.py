"""Stable Audio: T5 encodes, the denoiser projects embeddings and lengths, an Oobleck VAE decodes.

The call takes embeddings before their projection, while `encode_prompt` returns them after it. So
the text encoder's part of that function is written out here.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch

from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.diffusers.calling import Grid
from omnistage_stage.engines.diffusers.families.family import Embedding, Family, Need

__all__ = ["FAMILY", "StableAudio"]


class StableAudio(Family):
    """`StableAudioPipeline`."""

    kind = PayloadKind.WAVEFORM
    embeddings = (
        Embedding(name="prompt_embeds"),
        Embedding(name="attention_mask"),
        Embedding(name="negative_prompt_embeds", need=Need.OPTIONAL),
        Embedding(name="negative_attention_mask", need=Need.OPTIONAL),
    )

    def grid(self, pipeline: Any) -> Grid:
        """See `Family.grid`."""
        samples = pipeline.transformer.config.sample_size * pipeline.vae.hop_length
        return Grid(max_seconds=samples / self.rate_hz(pipeline))

    def is_guided(self, values: Mapping[str, Any], *, negative: bool) -> bool:
        """See `Family.is_guided`."""
        return bool(values["guidance_scale"] > 1) and negative

    def encode(
        self, pipeline: Any, prompt: str, negative_prompt: str | None, values: Mapping[str, Any]
    ) -> dict[str, Any]:
        """See `Family.encode`."""
        row, mask = _encoded(pipeline, prompt)
        made = {"prompt_embeds": row, "attention_mask": mask}
        if negative_prompt is not None and self.is_guided(values, negative=True):
            # A list, as in the pipeline; masked places become nothing.
            row, mask = _encoded(pipeline, [negative_prompt])
            row = torch.where(mask.to(torch.bool).unsqueeze(2), row, 0.0)
            made |= {"negative_prompt_embeds": row, "negative_attention_mask": mask}
        return made

    def decode(self, pipeline: Any, latents: Any, values: Mapping[str, Any], seed: int) -> Any:  # noqa: ARG002
        """See `Family.decode`."""
        rate = self.rate_hz(pipeline)
        end = values["audio_end_in_s"]
        if end is None:
            end = latents.shape[2] * pipeline.vae.hop_length / rate
        sound = pipeline.vae.decode(latents.to(pipeline.vae.dtype)).sample
        sound = sound[:, :, int(values["audio_start_in_s"] * rate) : int(end * rate)]
        return sound[0].cpu().float().numpy()

    def sample_embeddings(self, pipeline: Any) -> dict[str, Any]:
        """See `Family.sample_embeddings`."""
        return {
            "prompt_embeds": torch.zeros(1, 8, pipeline.projection_model.config.text_encoder_dim),
            "attention_mask": torch.ones(1, 8, dtype=torch.int64),
        }

    def sample_latents(self, pipeline: Any) -> Any:
        """See `Family.sample_latents`."""
        return torch.zeros(1, pipeline.vae.config.decoder_input_channels, 4)

    def rate_hz(self, pipeline: Any) -> int:
        """See `Family.rate_hz`."""
        return int(pipeline.vae.config.sampling_rate)


def _encoded(pipeline: Any, prompt: str | list[str]) -> tuple[Any, Any]:
    device = pipeline.text_encoder.device
    tokens = pipeline.tokenizer(
        prompt,
        padding="max_length",
        max_length=pipeline.tokenizer.model_max_length,
        truncation=True,
        return_tensors="pt",
    ).to(device)
    mask = tokens.attention_mask
    return pipeline.text_encoder(tokens.input_ids, attention_mask=mask)[0], mask


FAMILY: Final = StableAudio()
