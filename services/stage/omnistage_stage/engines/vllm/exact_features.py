"""Audio features exactly as a model's own processor makes them (foreign: vllm).

vLLM lengthens recordings for Qwen3-Omni to whole frames of 10 ms before the model's own processor
sees them, so that it may cache the features of each. That is up to one frame, and now and then one
token, more than the model's own code makes of the same recording. Nothing is cached here, so the
recordings go to the processor as they are.
"""

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["keep_recordings_as_they_are"]

_ARCHITECTURE: Final = "Qwen3OmniMoeForConditionalGeneration"


def keep_recordings_as_they_are(architectures: list[str]) -> None:
    """Has vLLM use a model's own processor without lengthening recordings first.

    Args:
        architectures: Of the checkpoint; for all but one there is nothing to do.
    """
    if _ARCHITECTURE not in architectures:
        return
    from vllm.model_executor.models import qwen3_omni_moe_thinker as thinker  # noqa: PLC0415
    from vllm.multimodal import MULTIMODAL_REGISTRY  # noqa: PLC0415

    lengthening: Any = thinker.Qwen3OmniMoeThinkerMultiModalProcessor

    class Exact(lengthening):  # type: ignore[misc]
        """The processor without the two steps that lengthen recordings and count them so."""

        def _get_hf_mm_inputs(self, mm_items: Any, hf_kwargs: Mapping[str, object]) -> Any:
            return super(lengthening, self)._get_hf_mm_inputs(mm_items, hf_kwargs)

        def _postprocess_hf_mm_data(
            self, hf_data: Mapping[str, object], hf_kwargs: Mapping[str, object], processed: Any
        ) -> Any:
            return super(lengthening, self)._postprocess_hf_mm_data(hf_data, hf_kwargs, processed)

    register = MULTIMODAL_REGISTRY.register_processor(
        Exact,
        info=thinker.Qwen3OmniMoeThinkerProcessingInfo,
        dummy_inputs=thinker.Qwen3OmniMoeThinkerDummyInputsBuilder,
    )
    register(thinker.Qwen3OmniMoeThinkerForConditionalGeneration)
