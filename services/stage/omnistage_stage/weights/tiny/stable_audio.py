"""A tiny Stable Audio (foreign: diffusers): up to 4.1 s of stereo sound at 16 kHz.

The scheduler is the deterministic relative of the real model's, which needs one library more.
"""

from pathlib import Path
from typing import Final

from omnistage_stage.weights.tiny.encoders import t5_encoder
from omnistage_stage.weights.tiny.text import prompt_tokenizer

__all__ = ["write"]

_CHANNELS: Final = 8
_CONDITIONING: Final = 16
_TEXT_WIDTH: Final = 32


def write(folder: Path) -> None:
    """Writes the pipeline."""
    from diffusers import (  # noqa: PLC0415
        AutoencoderOobleck,
        EDMDPMSolverMultistepScheduler,
        StableAudioDiTModel,
        StableAudioPipeline,
        StableAudioProjectionModel,
    )

    transformer = StableAudioDiTModel(
        sample_size=512,
        in_channels=_CHANNELS,
        out_channels=_CHANNELS,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        num_key_value_attention_heads=2,
        cross_attention_dim=16,
        time_proj_dim=16,
        global_states_input_dim=2 * _CONDITIONING,
        cross_attention_input_dim=_CONDITIONING,
    )
    vae = AutoencoderOobleck(
        encoder_hidden_size=8,
        downsampling_ratios=[4, 4, 8],
        channel_multiples=[1, 2, 4],
        decoder_channels=8,
        decoder_input_channels=_CHANNELS,
        audio_channels=2,
        sampling_rate=16_000,
    )
    scheduler = EDMDPMSolverMultistepScheduler(
        solver_order=2,
        prediction_type="v_prediction",
        sigma_data=1.0,
        sigma_schedule="exponential",
    )
    pipeline = StableAudioPipeline(
        transformer=transformer,
        scheduler=scheduler,
        vae=vae.eval(),
        text_encoder=t5_encoder(_TEXT_WIDTH),
        tokenizer=prompt_tokenizer(),
        projection_model=StableAudioProjectionModel(
            text_encoder_dim=_TEXT_WIDTH, conditioning_dim=_CONDITIONING, min_value=0, max_value=512
        ),
    )
    pipeline.save_pretrained(folder)
