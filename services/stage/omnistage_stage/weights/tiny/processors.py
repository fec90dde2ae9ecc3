"""What tiny omni checkpoints hear and see with: the processor files of both families (foreign: transformers).

Sounds and pictures are prepared as for the published models; only the largest picture is smaller.
"""

from typing import Any

__all__ = ["omni_processor"]


def omni_processor(kind: Any, tokenizer: Any, *, patch: int, template: str) -> Any:
    """A processor for text, recordings, pictures and videos.

    Args:
        kind: The family's class of transformers.
        tokenizer: Of the checkpoint.
        patch: Pixels along one side of a patch; a token stands for two by two of them.
        template: How a conversation becomes text.
    """
    from transformers import (  # noqa: PLC0415
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
        WhisperFeatureExtractor,
    )

    patches = {"patch_size": patch, "merge_size": 2, "temporal_patch_size": 2}
    side = 2 * patch
    return kind(
        image_processor=Qwen2VLImageProcessor(
            **patches, size={"shortest_edge": side**2, "longest_edge": (4 * side) ** 2}
        ),
        video_processor=Qwen2VLVideoProcessor(**patches),
        feature_extractor=WhisperFeatureExtractor(
            feature_size=128, sampling_rate=16_000, hop_length=160, return_attention_mask=True
        ),
        tokenizer=tokenizer,
        chat_template=template,
    )
