"""A tiny Stable Diffusion 3 (foreign: diffusers): 64 x 64 pixels in 64 tokens."""

from pathlib import Path

from omnistage_stage.weights.tiny.encoders import clip_encoder, t5_encoder
from omnistage_stage.weights.tiny.text import prompt_tokenizer

__all__ = ["write"]


def write(folder: Path) -> None:
    """Writes the pipeline."""
    from diffusers import (  # noqa: PLC0415
        AutoencoderKL,
        FlowMatchEulerDiscreteScheduler,
        SD3Transformer2DModel,
        StableDiffusion3Pipeline,
    )

    transformer = SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=64,
        pooled_projection_dim=64,
    )
    vae = AutoencoderKL(
        sample_size=64,
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(8, 8, 8),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=1,
        use_quant_conv=False,
        use_post_quant_conv=False,
        shift_factor=0.0609,
        scaling_factor=1.5305,
    )
    pipeline = StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae.eval(),
        text_encoder=clip_encoder(projected=True),
        tokenizer=prompt_tokenizer(),
        text_encoder_2=clip_encoder(projected=True),
        tokenizer_2=prompt_tokenizer(),
        text_encoder_3=t5_encoder(64),
        tokenizer_3=prompt_tokenizer(),
    )
    pipeline.save_pretrained(folder)
