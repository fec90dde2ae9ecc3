"""A tiny Qwen2.5-Omni: thinker, talker and token2wav (foreign: torch, transformers).

Beside the checkpoint stands `spk_dict.pt`, the reference voices that transformers loads with it.
"""

from pathlib import Path
from typing import Any, Final

from omnistage_stage.weights.tiny.drawing import (
    ENCODER_INITIALIZER_RANGE,
    INITIALIZER_RANGE,
    draw_convolutions,
    sharpen_head,
)
from omnistage_stage.weights.tiny.processors import omni_processor
from omnistage_stage.weights.tiny.text import chat_template, chat_tokenizer, speakable_ids

__all__ = ["write"]

_SPECIAL: Final = (
    "<|AUDIO|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|IMAGE|>",
    "<|VIDEO|>",
    "<|vision_bos|>",
    "<|vision_eos|>",
    "<|tts_text_bos|>",
    "<|tts_text_eos|>",
    "<|tts_text_pad|>",
    "<|voice_a|>",
    "<|voice_b|>",
)
_ATTRIBUTES: Final = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
_VOICES: Final = {"Chelsie": "<|voice_a|>", "Ethan": "<|voice_b|>"}
_HIDDEN: Final = 64
_CODEC_VOCABULARY: Final = 512
_CODEC_PAD: Final = 500
"""Codes proper are below; the other special ids of the codec are above."""
_SPEAKER_SIZE: Final = 32
_MEL_BINS: Final = 80
_REFERENCE_FRAMES: Final = 100
_GREETING: Final = (
    "You are an untrained model of the Qwen2.5-Omni architecture. You perceive text, images and "
    "recordings, and answer in text and speech."
)


def write(folder: Path) -> None:
    """Writes the checkpoint."""
    import torch  # noqa: PLC0415
    from transformers import (  # noqa: PLC0415
        GenerationConfig,
        Qwen2_5OmniConfig,
        Qwen2_5OmniForConditionalGeneration,
    )

    tokenizer = chat_tokenizer(_SPECIAL, _ATTRIBUTES)
    model = Qwen2_5OmniForConditionalGeneration(Qwen2_5OmniConfig(**_config(tokenizer))).eval()
    stop = tokenizer.eos_token_id
    sharpen_head(model.thinker.lm_head.weight, speakable_ids(tokenizer), stop)
    sharpen_head(model.talker.codec_head.weight, range(_CODEC_PAD), _CODEC_PAD + 2)
    draw_convolutions(model.token2wav.code2wav_bigvgan_model)
    model.generation_config = GenerationConfig(
        eos_token_id=[stop], pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    _processor(tokenizer).save_pretrained(folder)
    voices = {
        name: {
            "bos_token": tokenizer.convert_tokens_to_ids(token),
            "cond": torch.randn(1, _SPEAKER_SIZE),
            "ref_mel": torch.randn(1, _REFERENCE_FRAMES, _MEL_BINS),
        }
        for name, token in _VOICES.items()
    }
    torch.save(voices, folder / "spk_dict.pt")


def _config(tokenizer: Any) -> dict[str, Any]:
    token = tokenizer.convert_tokens_to_ids
    media = {
        "audio_token_index": token("<|AUDIO|>"),
        "image_token_index": token("<|IMAGE|>"),
        "video_token_index": token("<|VIDEO|>"),
        "audio_start_token_id": token("<|audio_bos|>"),
        "audio_end_token_id": token("<|audio_eos|>"),
        "vision_start_token_id": token("<|vision_bos|>"),
        "vision_end_token_id": token("<|vision_eos|>"),
    }
    return {
        "thinker_config": {
            "audio_config": {
                "num_mel_bins": 128,
                "encoder_layers": 2,
                "encoder_attention_heads": 4,
                "encoder_ffn_dim": 64,
                "d_model": 32,
                "output_dim": _HIDDEN,
                "n_window": 100,
                "initializer_range": ENCODER_INITIALIZER_RANGE,
            },
            "vision_config": {
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_heads": 4,
                "patch_size": 14,
                "out_hidden_size": _HIDDEN,
                "fullatt_block_indexes": [1],
                "initializer_range": ENCODER_INITIALIZER_RANGE,
            },
            "text_config": _text_config(heads=2)
            | {"vocab_size": len(tokenizer), "hidden_size": _HIDDEN},
            "user_token_id": token("user"),
            **media,
        },
        "talker_config": _talker_config(token) | media,
        "token2wav_config": _token2wav_config(),
        "enable_audio_output": True,
    }


def _text_config(heads: int) -> dict[str, Any]:
    """With heads of 32: vLLM's kernels for CPUs take no narrower ones."""
    return {
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "initializer_range": INITIALIZER_RANGE,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "mrope_section": [8, 4, 4],
        },
    }


def _talker_config(token: Any) -> dict[str, Any]:
    return _text_config(heads=4) | {
        "vocab_size": _CODEC_VOCABULARY,
        "embedding_size": _HIDDEN,
        "hidden_size": 48,
        "intermediate_size": 96,
        "head_dim": 32,
        "tts_text_start_token_id": token("<|tts_text_bos|>"),
        "tts_text_end_token_id": token("<|tts_text_eos|>"),
        "tts_text_pad_token_id": token("<|tts_text_pad|>"),
        "tts_codec_pad_token_id": _CODEC_PAD,
        "tts_codec_start_token_id": _CODEC_PAD + 1,
        "tts_codec_end_token_id": _CODEC_PAD + 2,
        "tts_codec_mask_token_id": _CODEC_PAD + 4,
    }


def _token2wav_config() -> dict[str, Any]:
    return {
        "dit_config": {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "head_dim": 32,
            "emb_dim": 32,
            "block_size": 24,
            "look_ahead_layers": [1],
            "look_backward_layers": [0],
            "num_embeds": _CODEC_VOCABULARY + 1,
            "mel_dim": _MEL_BINS,
            "enc_emb_dim": _SPEAKER_SIZE,
            "enc_dim": 32,
            "enc_channels": [32, 32, 32, 32, 96],
            "enc_attention_channels": 16,
            "enc_se_channels": 16,
        },
        "bigvgan_config": {
            "mel_dim": _MEL_BINS,
            "upsample_initial_channel": 64,
            "upsample_rates": [5, 3, 2, 2, 2, 2],
            "upsample_kernel_sizes": [11, 7, 4, 4, 4, 4],
        },
    }


def _processor(tokenizer: Any) -> Any:
    from transformers import Qwen2_5OmniProcessor  # noqa: PLC0415

    template = chat_template(
        image="<|vision_bos|><|IMAGE|><|vision_eos|>",
        audio="<|audio_bos|><|AUDIO|><|audio_eos|>",
        video="<|vision_bos|><|VIDEO|><|vision_eos|>",
        greeting=_GREETING,
    )
    return omni_processor(Qwen2_5OmniProcessor, tokenizer, patch=14, template=template)
