"""The component `talker` of Qwen3-Omni: what the thinker read and wrote in, codec frames out.

Greedy and sampled codes are those of `Qwen3OmniMoeForConditionalGeneration.generate`: with a seed,
those that it gives when torch's own generator has that seed as the talker begins. They do not depend
on the pace at which tokens arrive; with `batching: exact` nor on who else is served.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import torch
from msgspec import Struct

from omnistage_common.errors import EngineFailed, InvalidRequest, SetupError
from omnistage_common.payloads import Parameters, Payload, PayloadKind
from omnistage_stage.engines.torch.components import ComponentSpec, require_ports
from omnistage_stage.engines.torch.conversion import from_payload, to_payload
from omnistage_stage.engines.torch.qwen3_omni.parts import load_talker
from omnistage_stage.engines.torch.qwen3_omni.prompting import SpecialTokens, special_tokens
from omnistage_stage.engines.torch.qwen3_omni.speaking import Speaker
from omnistage_stage.engines.torch.qwen3_omni.speech import (
    HIDDEN,
    POSITIONS,
    PROMPT,
    TOKENS,
    Speech,
)
from omnistage_stage.engines.torch.sampling import SamplingRule
from omnistage_stage.engines.torch.speech import SpeechRequest
from omnistage_stage.engines.torch.talker import TalkerComponent, chosen_rule

__all__ = ["Talker"]

_MAX_FRAMES: Final = 4095
"""`generate` stops at 4096 codes and has made a frame of each but the last."""
_VOICE: Final = "ethan"
"""Whom `generate` lets speak where nobody is named."""
_RULE: Final = SamplingRule(temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.05)
"""How `generate` samples where nothing is said."""
_SPECIAL_CODES: Final = 1024
"""Ids at the end of the talker's vocabulary that are no codes; all but the stop are suppressed."""
_PORTS: Final = (PROMPT, HIDDEN, POSITIONS, TOKENS)
_NEEDED: Final = (PROMPT, TOKENS)
_DIMENSIONS: Final = 3
"""Of a position: time, height and width."""


class _Limits(Struct, frozen=True, kw_only=True):
    """What the thinker's outputs must fit into."""

    vocabulary: int
    hidden_size: int


class _Loaded(Struct, frozen=True, kw_only=True):
    """What is known of the model after `load`."""

    special: SpecialTokens
    limits: _Limits


class Talker(TalkerComponent[Speech]):
    """See `Component`."""

    def __init__(self, spec: ComponentSpec) -> None:
        super().__init__(spec, ports=_PORTS, needed=_NEEDED, max_frames=_MAX_FRAMES)
        require_ports(spec.spec, needed=_NEEDED, allowed=_PORTS)
        speakers: Mapping[str, int] = spec.checkpoint.require("talker_config.speaker_id")
        self._speakers = {name.lower(): code for name, code in speakers.items()}
        self._default = self._default_voice()
        self._model: _Loaded | None = None

    async def close(self) -> None:
        """Ends the thread and frees the weights."""
        await super().close()
        self._model = None

    def _load_speaker(self, *, slots: int | None) -> Speaker:
        part = load_talker(self._spec.checkpoint, self._spec.placement)
        special = special_tokens(part.config)
        text = part.config.thinker_config.text_config
        speaker = Speaker(
            part.talker,
            part.thinker.model.embed_tokens,
            special,
            rule=chosen_rule(
                _RULE, self._arguments, suppressed=_suppressed(part.config.talker_config)
            ),
            slots=slots,
        )
        self._model = _Loaded(
            special=special,
            limits=_Limits(vocabulary=text.vocab_size, hidden_size=text.hidden_size),
        )
        return speaker

    def _probe_inputs(self) -> Mapping[str, Payload]:
        special = self._loaded.special
        turn = (special.start, special.user, special.stop, special.start, special.assistant)
        ids = {PROMPT: (*turn, special.stop), TOKENS: (special.user, special.user, special.stop)}
        return {
            port: to_payload(torch.tensor(tokens), PayloadKind.TOKENS)
            for port, tokens in ids.items()
        }

    def _speaker_id(self, parameters: Parameters) -> int:
        return self._speakers[self._voice(parameters)]

    def _speech(self, request: SpeechRequest) -> partial[Speech]:
        return partial(Speech, request, self._loaded.special)

    def _reader(self, port: str) -> partial[Any]:
        return partial(_read, port, self._loaded.limits)

    @property
    def _loaded(self) -> _Loaded:
        if self._model is None:
            raise EngineFailed("the talker was used before it was loaded")
        return self._model

    def _voice(self, parameters: Parameters) -> str:
        voice = self._default if parameters.voice is None else parameters.voice.lower()
        if voice not in self._speakers:
            raise InvalidRequest(
                f"there is no voice {parameters.voice!r}; this model has "
                f"{', '.join(sorted(self._speakers))}",
                field="voice",
            )
        return voice

    def _default_voice(self) -> str:
        wanted = self._arguments.voice
        if wanted is None:
            return _VOICE if _VOICE in self._speakers else next(iter(self._speakers))
        if wanted.lower() not in self._speakers:
            raise SetupError(
                f"engineArgs.voice: there is no voice {wanted!r}; the checkpoint has "
                f"{', '.join(sorted(self._speakers))}",
                field="engineArgs.voice",
            )
        return wanted.lower()


def _suppressed(config: Any) -> set[int]:
    vocabulary = config.text_config.vocab_size
    return set(range(vocabulary - _SPECIAL_CODES, vocabulary)) - {config.codec_eos_token_id}


def _read(port: str, limits: _Limits, piece: Payload) -> Any:
    """What arrived, as memory of our own.

    Raises:
        EngineFailed: It is not what the port takes. Found here, as the model would fail with it for
            everybody.
    """
    rows = from_payload(piece)
    columns = {HIDDEN: limits.hidden_size, POSITIONS: _DIMENSIONS}.get(port)
    expected = list(rows.shape[:1]) if columns is None else [*rows.shape[:1], columns]
    if list(rows.shape) != expected or rows.is_floating_point() != (port == HIDDEN):
        raise EngineFailed(
            f"`{port}` came as {rows.dtype} {list(rows.shape)}, which the talker cannot read"
        )
    if columns is not None:
        return rows.clone()
    tokens = rows.tolist()
    if tokens and not 0 <= min(tokens) <= max(tokens) < limits.vocabulary:
        raise EngineFailed(
            f"`{port}` has ids from {min(tokens)} to {max(tokens)}; the thinker's vocabulary has "
            f"{limits.vocabulary}"
        )
    return tokens
