"""The component `talker` of Qwen3-Omni: what the thinker read and wrote in, codec frames out.

Greedy and sampled codes are those of `Qwen3OmniMoeForConditionalGeneration.generate`: with a seed,
those that it gives when torch's own generator has that seed as the talker begins. They do not depend
on the pace at which tokens arrive; with `batching: exact` nor on who else is served.
"""

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Final, cast

import torch
from msgspec import Struct, structs

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import EngineFailed, InvalidRequest, SetupError
from omnistage_common.ids import OutputName, new_request_id
from omnistage_common.payloads import Parameters, Payload, PayloadKind
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, Outputs
from omnistage_stage.engines.torch.arguments import TalkerArguments
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
    SpeechRequest,
)
from omnistage_stage.engines.torch.sampling import SamplingRule, seeded_generator
from omnistage_stage.engines.torch.stepping import StepLoop

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
_DIMENSIONS: Final = 3
"""Of a position: time, height and width."""


class _Limits(Struct, frozen=True, kw_only=True):
    """What the thinker's outputs must fit into."""

    vocabulary: int
    hidden_size: int


class _Loaded(Struct, frozen=True, kw_only=True):
    """What there is after `load`."""

    speaker: Speaker
    special: SpecialTokens
    limits: _Limits


class Talker:
    """See `Component`."""

    def __init__(self, spec: ComponentSpec) -> None:
        require_ports(spec.spec, needed=(PROMPT, TOKENS), allowed=_PORTS)
        self._spec = spec
        self._arguments = cast("TalkerArguments", spec.arguments)
        speakers: Mapping[str, int] = spec.checkpoint.require("talker_config.speaker_id")
        self._speakers = {name.lower(): code for name, code in speakers.items()}
        self._default = self._default_voice()
        self._model: _Loaded | None = None
        self._steps: StepLoop[Speech] = StepLoop(
            self._make_speaker, name=f"talker-{spec.spec.stage}"
        )

    @property
    def active(self) -> int:
        """Requests that hold memory of the model."""
        return self._steps.active

    @property
    def slots(self) -> int:
        """Those of them that have a place in the padded cache."""
        return 0 if self._model is None else self._model.speaker.slots

    async def load(self) -> None:
        """Loads the talker and the thinker's embedding table.

        Raises:
            InvalidWeights: The checkpoint lacks something.
        """
        await self._steps.start()

    async def probe(self) -> None:
        """Speaks a frame for real."""
        special = self._loaded.special
        turn = (special.start, special.user, special.stop, special.start, special.assistant)
        ids = {PROMPT: (*turn, special.stop), TOKENS: (special.user, special.user, special.stop)}
        request = EngineRequest(
            id=new_request_id(),
            inputs={
                OutputName(port): (to_payload(torch.tensor(tokens), PayloadKind.TOKENS),)
                for port, tokens in ids.items()
            },
            parameters=Parameters(seed=0),
            deadline=Deadline.after(60),
        )
        # Whether it speaks or stops at once is the model's choice; it has computed for either.
        await self._steps.run(
            self._job(request, max_frames=1), self._feeds(request), lambda _frame: None
        )

    async def run(self, request: EngineRequest, outputs: Outputs) -> EngineResult:
        """Speaks one answer.

        Raises:
            InvalidRequest: There is no such voice.
            EngineFailed: The producer's outputs are not what a talker reads, or the answer is empty.
        """

        def emit(payload: Payload) -> None:
            outputs.emit(self._spec.output, payload)

        limit = self._arguments.max_frames or _MAX_FRAMES
        result = await self._steps.run(
            self._job(request, max_frames=limit), self._feeds(request), emit
        )
        if not result.output_tokens:
            raise EngineFailed("the talker ended before it had said anything")
        return result

    async def close(self) -> None:
        """Ends the thread and frees the weights."""
        await self._steps.stop()
        self._model = None

    def _make_speaker(self) -> Speaker:
        placement = self._spec.placement
        placement.enter()
        for section in ("thinker_config", "talker_config"):
            self._spec.checkpoint.require(section)
        part = load_talker(self._spec.checkpoint, placement)
        special = special_tokens(part.config)
        text = part.config.thinker_config.text_config
        batching = self._arguments.batching
        exact = placement.exact if batching == "auto" else batching == "exact"
        speaker = Speaker(
            part.talker,
            part.thinker.model.embed_tokens,
            special,
            rule=_rule(self._arguments, part.config.talker_config),
            slots=None if exact else self._spec.spec.max_running + 1,
        )
        self._model = _Loaded(
            speaker=speaker,
            special=special,
            limits=_Limits(vocabulary=text.vocab_size, hidden_size=text.hidden_size),
        )
        return speaker

    @property
    def _loaded(self) -> _Loaded:
        if self._model is None:
            raise EngineFailed("the talker was used before it was loaded")
        return self._model

    def _job(self, request: EngineRequest, *, max_frames: int) -> partial[Speech]:
        ports = frozenset(_PORTS).intersection({*request.inputs, *request.streams})
        missing = {PROMPT, TOKENS} - ports
        if missing:
            raise EngineFailed(f"the talker needs `{min(missing)}`; the pipeline brings none")
        speech = SpeechRequest(
            speaker=self._speakers[self._voice(request.parameters)],
            generator=seeded_generator(request.parameters.seed, self._spec.placement.device),
            max_frames=max_frames,
            ports=ports,
            streamed=ports.intersection(request.streams),
        )
        return partial(Speech, speech, self._loaded.special)

    def _feeds(self, request: EngineRequest) -> dict[str, tuple[AsyncIterator[Payload], Any]]:
        limits = self._loaded.limits
        # The order matters where everything is there at once: the prompt first.
        return {
            port: (request.pieces(OutputName(port)), partial(_read, port, limits))
            for port in _PORTS
            if port in request.inputs or port in request.streams
        }

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


def _rule(arguments: TalkerArguments, config: Any) -> SamplingRule:
    vocabulary = config.text_config.vocab_size
    chosen = {
        name: value
        for name in ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty")
        if (value := getattr(arguments, name)) is not None
    }
    suppressed = set(range(vocabulary - _SPECIAL_CODES, vocabulary)) - {config.codec_eos_token_id}
    return structs.replace(_RULE, suppressed=tuple(sorted(suppressed)), **chosen)


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
