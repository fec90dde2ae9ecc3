"""A tiny Wan, text to video (foreign: diffusers): 1/8 of the size and 1/4 of the frames."""

from pathlib import Path

from omnistage_stage.weights.tiny.encoders import t5_encoder
from omnistage_stage.weights.tiny.text import prompt_tokenizer

__all__ = ["write"]


def write(folder: Path) -> None:
    """Writes the pipeline."""
    from diffusers import (  # noqa: PLC0415
        AutoencoderKLWan,
        UniPCMultistepScheduler,
        WanPipeline,
        WanTransformer3DModel,
    )

    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=16,
        out_channels=16,
        text_dim=32,
        freq_dim=64,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )
    vae = AutoencoderKLWan(
        base_dim=4,
        z_dim=16,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
    )
    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )
    pipeline = WanPipeline(
        transformer=transformer,
        scheduler=scheduler,
        vae=vae.eval(),
        text_encoder=t5_encoder(),
        tokenizer=prompt_tokenizer(),
    )
    pipeline.save_pretrained(folder)
