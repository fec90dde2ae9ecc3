"""The component `talker` of Qwen2.5-Omni: what the thinker read and wrote in, speech codes out.

Greedy and sampled codes are those of `Qwen2_5OmniForConditionalGeneration.generate`: with a seed,
those that it gives when torch's own generator has that seed as the talker begins. They do not depend
on the pace at which rows arrive; with `batching: exact` nor on who else is served.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import torch

from omnistage_common.errors import EngineFailed, InvalidWeights
from omnistage_common.payloads import Parameters, Payload, PayloadKind
from omnistage_stage.engines.torch.components import ComponentSpec, require_ports
from omnistage_stage.engines.torch.conversion import from_payload, to_payload
from omnistage_stage.engines.torch.qwen2_5_omni.parts import load_talker
from omnistage_stage.engines.torch.qwen2_5_omni.prompting import SpecialTokens, special_tokens
from omnistage_stage.engines.torch.qwen2_5_omni.speaking import Speaker
from omnistage_stage.engines.torch.qwen2_5_omni.speech import (
    ANSWER_HIDDEN,
    POSITIONS,
    PROMPT,
    PROMPT_HIDDEN,
    TOKENS,
    Speech,
)
from omnistage_stage.engines.torch.qwen2_5_omni.voices import read_voices
from omnistage_stage.engines.torch.sampling import SamplingRule
from omnistage_stage.engines.torch.speech import SpeechRequest
from omnistage_stage.engines.torch.talker import TalkerComponent, chosen_rule

__all__ = ["Talker"]

_MAX_FRAMES: Final = 4096
_RULE: Final = SamplingRule(temperature=0.9, top_k=40, top_p=0.8, repetition_penalty=1.05)
"""How `generate` samples where nothing is said."""
_NEEDED: Final = (PROMPT, PROMPT_HIDDEN, TOKENS, ANSWER_HIDDEN)
_RANKS: Final = {PROMPT: 1, PROMPT_HIDDEN: 2, POSITIONS: 2, TOKENS: 1, ANSWER_HIDDEN: 2}
_FLOATS: Final = frozenset({PROMPT_HIDDEN, ANSWER_HIDDEN})


class Talker(TalkerComponent[Speech]):
    """See `Component`."""

    def __init__(self, spec: ComponentSpec) -> None:
        # An answer of one token has no hidden state, and may then bring nothing at that port.
        needed = set(_NEEDED) - {ANSWER_HIDDEN}
        super().__init__(spec, ports=_RANKS, needed=needed, max_frames=_MAX_FRAMES)
        require_ports(spec.spec, needed=_NEEDED, allowed=_RANKS)
        self._voices = read_voices(spec.checkpoint, default=self._arguments.voice)
        self._special: SpecialTokens | None = None

    def _load_speaker(self, *, slots: int | None) -> Speaker:
        part = load_talker(self._spec.checkpoint, self._spec.placement)
        special = special_tokens(part.config)
        self._check_voices(special)
        self._special = special
        return Speaker(
            part.talker,
            part.thinker.model.embed_tokens,
            special,
            rule=chosen_rule(_RULE, self._arguments, suppressed=(special.codec_begin,)),
            slots=slots,
        )

    def _probe_inputs(self) -> Mapping[str, Payload]:
        width = self._specials().width
        ids = to_payload(torch.tensor((0, 1)), PayloadKind.TOKENS)
        rows = {
            PROMPT_HIDDEN: to_payload(torch.zeros(2, width), PayloadKind.HIDDEN_STATES),
            ANSWER_HIDDEN: to_payload(torch.zeros(1, width), PayloadKind.HIDDEN_STATES),
        }
        return {port: rows.get(port, ids) for port in _NEEDED}

    def _speaker_id(self, parameters: Parameters) -> int:
        return self._voices.find(parameters.voice).token

    def _speech(self, request: SpeechRequest) -> partial[Speech]:
        return partial(Speech, request, self._specials())

    def _reader(self, port: str) -> partial[Any]:
        return partial(_read, port)

    def _check_voices(self, special: SpecialTokens) -> None:
        for voice in self._voices:
            if not 0 <= voice.token < special.vocabulary:
                raise InvalidWeights(
                    f"{self._spec.checkpoint.folder}/spk_dict.pt: {voice.name}'s bos_token "
                    f"{voice.token} is none of the {special.vocabulary} tokens",
                    field="model",
                )

    def _specials(self) -> SpecialTokens:
        if self._special is None:
            raise EngineFailed("the talker was used before it was loaded")
        return self._special


def _read(port: str, piece: Payload) -> Any:
    """What arrived, as memory of our own.

    Raises:
        EngineFailed: It is not what the port takes.
    """
    rows = from_payload(piece)
    if rows.ndim != _RANKS[port] or rows.is_floating_point() != (port in _FLOATS):
        raise EngineFailed(
            f"`{port}` came as {rows.dtype} {list(rows.shape)}, which the talker cannot read"
        )
    return rows.clone() if rows.ndim > 1 else rows.tolist()
