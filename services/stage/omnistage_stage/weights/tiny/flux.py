"""A tiny Flux (foreign: diffusers): latents of 1/8 of the image's width and height."""

from pathlib import Path

from omnistage_stage.weights.tiny.encoders import clip_encoder, t5_encoder
from omnistage_stage.weights.tiny.text import prompt_tokenizer

__all__ = ["write"]


def write(folder: Path) -> None:
    """Writes the pipeline."""
    from diffusers import (  # noqa: PLC0415
        AutoencoderKL,
        FlowMatchEulerDiscreteScheduler,
        FluxPipeline,
        FluxTransformer2DModel,
    )

    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        guidance_embeds=True,
        axes_dims_rope=(4, 4, 8),
    )
    vae = AutoencoderKL(
        sample_size=64,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=1,
        use_quant_conv=False,
        use_post_quant_conv=False,
        shift_factor=0.1159,
        scaling_factor=0.3611,
    )
    pipeline = FluxPipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
        vae=vae.eval(),
        text_encoder=clip_encoder(projected=False),
        tokenizer=prompt_tokenizer(),
        text_encoder_2=t5_encoder(),
        tokenizer_2=prompt_tokenizer(),
    )
    pipeline.save_pretrained(folder)
