"""Text encoders that several tiny diffusion pipelines share (foreign: transformers)."""

from typing import Any, Final

__all__ = ["clip_encoder", "t5_encoder"]

_VOCABULARY: Final = 512
"""A power of two that holds the vocabulary of `prompt_tokenizer`."""


def clip_encoder(*, projected: bool, width: int = 32) -> Any:
    """A CLIP text encoder.

    Args:
        projected: Give pooled embeddings through a projection, as Stable Diffusion 3 wants.
        width: Size of an embedding.
    """
    from transformers import (  # noqa: PLC0415
        CLIPTextConfig,
        CLIPTextModel,
        CLIPTextModelWithProjection,
    )

    config = CLIPTextConfig(
        vocab_size=_VOCABULARY,
        hidden_size=width,
        intermediate_size=64,
        num_attention_heads=4,
        num_hidden_layers=2,
        projection_dim=width,
        max_position_embeddings=77,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=3,
    )
    kind = CLIPTextModelWithProjection if projected else CLIPTextModel
    return kind(config).eval()


def t5_encoder(width: int = 32) -> Any:
    """A T5 text encoder.

    Args:
        width: Size of an embedding.
    """
    from transformers import T5Config, T5EncoderModel  # noqa: PLC0415

    config = T5Config(
        vocab_size=_VOCABULARY, d_model=width, d_kv=8, d_ff=64, num_layers=2, num_heads=4
    )
    return T5EncoderModel(config).eval()
