"""A tiny Qwen-Image (foreign: diffusers, transformers): its text encoder is a Qwen2.5-VL."""

from pathlib import Path
from typing import Any, Final

from omnistage_stage.weights.tiny.text import chat_tokenizer

__all__ = ["write"]

_LATENT_CHANNELS: Final = 4
_TEXT_WIDTH: Final = 16
_SPECIAL: Final = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


def write(folder: Path) -> None:
    """Writes the pipeline."""
    from diffusers import (  # noqa: PLC0415
        AutoencoderKLQwenImage,
        FlowMatchEulerDiscreteScheduler,
        QwenImagePipeline,
        QwenImageTransformer2DModel,
    )

    tokenizer = chat_tokenizer(_SPECIAL, {})
    transformer = QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=4 * _LATENT_CHANNELS,
        out_channels=_LATENT_CHANNELS,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=3,
        joint_attention_dim=_TEXT_WIDTH,
        guidance_embeds=False,
        axes_dims_rope=(8, 4, 4),
    )
    vae = AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=_LATENT_CHANNELS,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * _LATENT_CHANNELS,
        latents_std=[1.0] * _LATENT_CHANNELS,
    )
    pipeline = QwenImagePipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=vae.eval(),
        text_encoder=_text_encoder(tokenizer),
        tokenizer=tokenizer,
    )
    pipeline.save_pretrained(folder)


def _text_encoder(tokenizer: Any) -> Any:
    from transformers import (  # noqa: PLC0415
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
    )

    token = tokenizer.convert_tokens_to_ids
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": _TEXT_WIDTH,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [1, 1, 2],
            },
        },
        vision_config={
            "depth": 2,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_heads": 2,
            "out_hidden_size": _TEXT_WIDTH,
        },
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
    )
    return Qwen2_5_VLForConditionalGeneration(config).eval()
