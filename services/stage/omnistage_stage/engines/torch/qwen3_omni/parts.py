"""Which modules of a Qwen3-Omni checkpoint a stage loads, named as in the whole model.

The talker reads text through the thinker's embedding table, and loads nothing else of the thinker.
"""

from typing import Any

from torch import nn
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as qwen3_omni
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeConfig

from omnistage_stage.engines.torch.checkpoints import Checkpoint, load_part
from omnistage_stage.engines.torch.placement import Placement

__all__ = ["load_code2wav", "load_talker"]


class _Part(qwen3_omni.Qwen3OmniMoePreTrainedModel):  # type: ignore[misc]
    config_class = Qwen3OmniMoeConfig
    base_model_prefix = ""

    @classmethod
    def is_custom_code(cls) -> bool:
        """False: the checkpoint's names are mapped to modules as for the whole model."""
        return False


class _TalkerPart(_Part):
    _keys_to_ignore_on_load_unexpected = (r"^thinker\.", r"^code2wav\.")

    def __init__(self, config: Qwen3OmniMoeConfig) -> None:
        super().__init__(config)
        text = config.thinker_config.text_config
        self.thinker = nn.Module()
        self.thinker.model = nn.Module()
        self.thinker.model.embed_tokens = nn.Embedding(text.vocab_size, text.hidden_size)
        self.talker = qwen3_omni.Qwen3OmniMoeTalkerForConditionalGeneration._from_config(  # noqa: SLF001
            config.talker_config
        )
        self.post_init()


class _Code2WavPart(_Part):
    _keys_to_ignore_on_load_unexpected = (r"^thinker\.", r"^talker\.")

    def __init__(self, config: Qwen3OmniMoeConfig) -> None:
        super().__init__(config)
        self.code2wav = qwen3_omni.Qwen3OmniMoeCode2Wav._from_config(  # noqa: SLF001
            config.code2wav_config
        )
        self.post_init()


def load_talker(checkpoint: Checkpoint, placement: Placement) -> Any:
    """A model with `talker`, `thinker.model.embed_tokens` and the whole `config`.

    Raises:
        InvalidWeights: The checkpoint lacks something.
    """
    return load_part(_TalkerPart, checkpoint, placement)


def load_code2wav(checkpoint: Checkpoint, placement: Placement) -> Any:
    """A model with `code2wav` and the whole `config`.

    Raises:
        InvalidWeights: The checkpoint lacks something.
    """
    return load_part(_Code2WavPart, checkpoint, placement)
