"""A tiny Qwen3-Omni (mixture of experts): thinker, talker and vocoder (foreign: transformers).

Its configuration says what transformers leaves out and vLLM asks for: image size and positions of
the vision encoder, and the end tokens of audio and vision.
"""

import json
from pathlib import Path
from typing import Any, Final

from omnistage_stage.weights.tiny.drawing import (
    ENCODER_INITIALIZER_RANGE,
    INITIALIZER_RANGE,
    draw_convolutions,
    draw_experts,
    sharpen_head,
)
from omnistage_stage.weights.tiny.processors import omni_processor
from omnistage_stage.weights.tiny.text import chat_template, chat_tokenizer, speakable_ids

__all__ = ["write"]

_SPECIAL: Final = (
    "<|audio_start|>",
    "<|audio_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|audio_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
)
_ATTRIBUTES: Final = {
    "image_token": "<|image_pad|>",
    "audio_token": "<|audio_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}
_HIDDEN: Final = 64
_CODEBOOK: Final = 512
_CODE_GROUPS: Final = 4
_CODEC_SPECIAL: Final = 1024
"""Ids of the talker's vocabulary beyond the codebook; transformers never samples them, but one."""
_CODEC_STOP: Final = _CODEBOOK + 888
_ROPE: Final = {"rope_type": "default", "rope_theta": 10_000.0}


def write(folder: Path) -> None:
    """Writes the checkpoint."""
    from transformers import (  # noqa: PLC0415
        GenerationConfig,
        Qwen3OmniMoeConfig,
        Qwen3OmniMoeForConditionalGeneration,
    )

    tokenizer = chat_tokenizer(_SPECIAL, _ATTRIBUTES)
    model = Qwen3OmniMoeForConditionalGeneration(Qwen3OmniMoeConfig(**_config(tokenizer))).eval()
    draw_experts(model.talker.model)
    stop = tokenizer.eos_token_id
    sharpen_head(model.thinker.lm_head.weight, speakable_ids(tokenizer), stop)
    sharpen_head(model.talker.codec_head.weight, range(_CODEBOOK), _CODEC_STOP)
    draw_convolutions(model.code2wav)
    model.generation_config = GenerationConfig(
        eos_token_id=[stop], pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    _processor(tokenizer).save_pretrained(folder)
    _complete_config(folder / "config.json", tokenizer)


def _config(tokenizer: Any) -> dict[str, Any]:
    token = tokenizer.convert_tokens_to_ids
    media = {
        "audio_token_id": token("<|audio_pad|>"),
        "image_token_id": token("<|image_pad|>"),
        "video_token_id": token("<|video_pad|>"),
        "audio_start_token_id": token("<|audio_start|>"),
        "vision_start_token_id": token("<|vision_start|>"),
    }
    return {
        "thinker_config": {
            "audio_config": _audio_config(),
            "vision_config": _vision_config(),
            "text_config": _thinker_text_config(len(tokenizer)),
            "user_token_id": token("user"),
            **media,
        },
        "talker_config": _talker_config() | media,
        "code2wav_config": {
            "codebook_size": _CODEBOOK,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_quantizers": _CODE_GROUPS,
            "decoder_dim": 64,
            "sliding_window": 72,
            "rope_parameters": _ROPE,
        },
        "im_start_token_id": token("<|im_start|>"),
        "im_end_token_id": token("<|im_end|>"),
        "tts_pad_token_id": token("<tts_pad>"),
        "tts_bos_token_id": token("<tts_text_bos>"),
        "tts_eos_token_id": token("<tts_text_eod>"),
        "system_token_id": token("system"),
        "user_token_id": token("user"),
        "assistant_token_id": token("assistant"),
        "enable_audio_output": True,
    }


def _audio_config() -> dict[str, Any]:
    return {
        "num_mel_bins": 128,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "d_model": 32,
        "output_dim": _HIDDEN,
        "n_window": 50,
        "n_window_infer": 800,
        "downsample_hidden_size": 16,
        "initializer_range": ENCODER_INITIALIZER_RANGE,
    }


def _vision_config() -> dict[str, Any]:
    return {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 4,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "image_size": 256,
        "apply_vit_abs_pos_embed": True,
        "num_position_embeddings": 256,
        "out_hidden_size": _HIDDEN,
        "deepstack_visual_indexes": [0],
        "initializer_range": ENCODER_INITIALIZER_RANGE,
    }


def _thinker_text_config(vocabulary: int) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": _HIDDEN,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "max_position_embeddings": 4096,
        "initializer_range": INITIALIZER_RANGE,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "mrope_section": [8, 4, 4],
            "mrope_interleaved": True,
        },
    }


def _talker_config() -> dict[str, Any]:
    return {
        "text_config": {
            "vocab_size": _CODEBOOK + _CODEC_SPECIAL,
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
            "max_position_embeddings": 4096,
            "initializer_range": INITIALIZER_RANGE,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
        },
        "code_predictor_config": {
            "vocab_size": _CODEBOOK,
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "num_code_groups": _CODE_GROUPS,
            "rope_parameters": _ROPE,
        },
        "num_code_groups": _CODE_GROUPS,
        "spatial_merge_size": 2,
        "thinker_hidden_size": _HIDDEN,
        "accept_hidden_layer": 2,
        "codec_eos_token_id": _CODEC_STOP,
        "codec_nothink_id": _CODEC_STOP + 1,
        "codec_think_bos_id": _CODEC_STOP + 2,
        "codec_think_eos_id": _CODEC_STOP + 3,
        "codec_pad_id": _CODEC_STOP + 4,
        "codec_bos_id": _CODEC_STOP + 5,
        "speaker_id": {"chelsie": _CODEC_STOP + 10, "ethan": _CODEC_STOP + 11},
    }


def _processor(tokenizer: Any) -> Any:
    from transformers import Qwen3OmniMoeProcessor  # noqa: PLC0415

    template = chat_template(
        image="<|vision_start|><|image_pad|><|vision_end|>",
        audio="<|audio_start|><|audio_pad|><|audio_end|>",
        video="<|vision_start|><|video_pad|><|vision_end|>",
    )
    return omni_processor(Qwen3OmniMoeProcessor, tokenizer, patch=16, template=template)


def _complete_config(path: Path, tokenizer: Any) -> None:
    token = tokenizer.convert_tokens_to_ids
    config = json.loads(path.read_text("utf-8"))
    config["thinker_config"] |= {
        "audio_end_token_id": token("<|audio_end|>"),
        "vision_start_token_id": token("<|vision_start|>"),
        "vision_end_token_id": token("<|vision_end|>"),
    }
    config["thinker_config"]["text_config"]["tie_word_embeddings"] = False
    path.write_text(json.dumps(config, indent=2) + "\n", "utf-8")
