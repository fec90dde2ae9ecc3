"""Which modules of a Qwen2.5-Omni checkpoint a stage loads, named as in the whole model.

The talker reads text through the thinker's embedding table, and loads nothing else of the thinker.
"""

from typing import Any

from torch import nn
from transformers import Qwen2_5OmniConfig
from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as qwen2_5_omni

from omnistage_stage.engines.torch.checkpoints import Checkpoint, load_part
from omnistage_stage.engines.torch.placement import Placement

__all__ = ["load_talker", "load_token2wav"]


class _Part(qwen2_5_omni.Qwen2_5OmniPreTrainedModel):  # type: ignore[misc]
    config_class = Qwen2_5OmniConfig
    base_model_prefix = ""

    @classmethod
    def is_custom_code(cls) -> bool:
        """False: the checkpoint's names are mapped to modules as for the whole model."""
        return False


class _TalkerPart(_Part):
    _keys_to_ignore_on_load_unexpected = (r"^thinker\.", r"^token2wav\.")

    def __init__(self, config: Qwen2_5OmniConfig) -> None:
        super().__init__(config)
        text = config.thinker_config.text_config
        self.thinker = nn.Module()
        self.thinker.model = nn.Module()
        self.thinker.model.embed_tokens = nn.Embedding(text.vocab_size, text.hidden_size)
        self.talker = qwen2_5_omni.Qwen2_5OmniTalkerForConditionalGeneration._from_config(  # noqa: SLF001
            config.talker_config
        )
        self.post_init()


class _Token2WavPart(_Part):
    _keys_to_ignore_on_load_unexpected = (r"^thinker\.", r"^talker\.")

    def __init__(self, config: Qwen2_5OmniConfig) -> None:
        super().__init__(config)
        self.token2wav = qwen2_5_omni.Qwen2_5OmniToken2WavModel._from_config(  # noqa: SLF001
            config.token2wav_config
        )
        self.post_init()


def load_talker(checkpoint: Checkpoint, placement: Placement) -> Any:
    """A model with `talker`, `thinker.model.embed_tokens` and the whole `config`.

    Raises:
        InvalidWeights: The checkpoint lacks something.
    """
    return load_part(_TalkerPart, checkpoint, placement)


def load_token2wav(checkpoint: Checkpoint, placement: Placement) -> Any:
    """A model with `token2wav` and the whole `config`.

    Raises:
        InvalidWeights: The checkpoint lacks something.
    """
    return load_part(_Token2WavPart, checkpoint, placement)
