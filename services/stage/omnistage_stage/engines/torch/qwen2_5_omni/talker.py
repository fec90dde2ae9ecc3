"""The component `talker` of Qwen2.5-Omni: what the thinker read and wrote in, speech codes out.

Greedy and sampled codes are those of `Qwen2_5OmniForConditionalGeneration.generate`: with a seed,
those that it gives when torch's own generator has that seed as the talker begins. They do not depend
on the pace at which rows arrive; with `batching: exact` nor on who else is served.
"""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

import torch
from msgspec import structs

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import EngineFailed, InvalidWeights
from omnistage_common.ids import OutputName, new_request_id
from omnistage_common.payloads import Parameters, Payload, PayloadKind
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, Outputs
from omnistage_stage.engines.torch.arguments import TalkerArguments
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
    SpeechRequest,
)
from omnistage_stage.engines.torch.qwen2_5_omni.voices import read_voices
from omnistage_stage.engines.torch.sampling import SamplingRule, seeded_generator
from omnistage_stage.engines.torch.stepping import StepLoop

__all__ = ["Talker"]

_MAX_FRAMES: Final = 4096
_RULE: Final = SamplingRule(temperature=0.9, top_k=40, top_p=0.8, repetition_penalty=1.05)
"""How `generate` samples where nothing is said."""
_NEEDED: Final = (PROMPT, PROMPT_HIDDEN, TOKENS, ANSWER_HIDDEN)
_RANKS: Final = {PROMPT: 1, PROMPT_HIDDEN: 2, POSITIONS: 2, TOKENS: 1, ANSWER_HIDDEN: 2}
_FLOATS: Final = frozenset({PROMPT_HIDDEN, ANSWER_HIDDEN})


class Talker:
    """See `Component`."""

    def __init__(self, spec: ComponentSpec) -> None:
        assert isinstance(spec.arguments, TalkerArguments)  # noqa: S101
        require_ports(spec.spec, needed=_NEEDED, allowed=_RANKS)
        self._spec = spec
        self._arguments = spec.arguments
        self._voices = read_voices(spec.checkpoint, default=spec.arguments.voice)
        self._special: SpecialTokens | None = None
        self._speaker: Speaker | None = None
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
        return 0 if self._speaker is None else self._speaker.slots

    async def load(self) -> None:
        """Loads the talker and the thinker's embedding table.

        Raises:
            InvalidWeights: The checkpoint lacks something.
        """
        await self._steps.start()

    async def probe(self) -> None:
        """Speaks a code for real."""
        width = self._specials().width
        ids = to_payload(torch.tensor((0, 1)), PayloadKind.TOKENS)
        rows = {
            PROMPT_HIDDEN: to_payload(torch.zeros(2, width), PayloadKind.HIDDEN_STATES),
            ANSWER_HIDDEN: to_payload(torch.zeros(1, width), PayloadKind.HIDDEN_STATES),
        }
        request = EngineRequest(
            id=new_request_id(),
            inputs={OutputName(port): (rows.get(port, ids),) for port in _NEEDED},
            parameters=Parameters(seed=0),
            deadline=Deadline.after(60),
        )
        # Whether it speaks or stops at once is the model's choice; it has computed for either.
        await self._steps.run(
            self._job(request, max_frames=1), self._feeds(request), lambda _code: None
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
        self._speaker = None

    def _make_speaker(self) -> Speaker:
        placement = self._spec.placement
        placement.enter()
        for section in ("thinker_config", "talker_config"):
            self._spec.checkpoint.require(section)
        part = load_talker(self._spec.checkpoint, placement)
        special = special_tokens(part.config)
        self._check_voices(special)
        self._special = special
        batching = self._arguments.batching
        exact = placement.exact if batching == "auto" else batching == "exact"
        self._speaker = Speaker(
            part.talker,
            part.thinker.model.embed_tokens,
            special,
            rule=_rule(self._arguments, special),
            slots=None if exact else self._spec.spec.max_running + 1,
        )
        return self._speaker

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

    def _job(self, request: EngineRequest, *, max_frames: int) -> partial[Speech]:
        ports = frozenset(_RANKS).intersection({*request.inputs, *request.streams})
        # An answer of one token has no hidden state, and may then bring nothing at that port.
        missing = set(_NEEDED) - {ANSWER_HIDDEN} - ports
        if missing:
            raise EngineFailed(f"the talker needs `{min(missing)}`; the pipeline brings none")
        speech = SpeechRequest(
            speaker=self._voices.find(request.parameters.voice).token,
            generator=seeded_generator(request.parameters.seed, self._spec.placement.device),
            max_frames=max_frames,
            ports=ports,
            streamed=ports.intersection(request.streams),
        )
        return partial(Speech, speech, self._specials())

    def _feeds(self, request: EngineRequest) -> dict[str, tuple[AsyncIterator[Payload], Any]]:
        # The order matters where everything is there at once: the prompt first.
        return {
            port: (request.pieces(OutputName(port)), partial(_read, port))
            for port in _RANKS
            if port in request.inputs or port in request.streams
        }


def _rule(arguments: TalkerArguments, special: SpecialTokens) -> SamplingRule:
    chosen = {
        name: value
        for name in ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty")
        if (value := getattr(arguments, name)) is not None
    }
    return structs.replace(_RULE, suppressed=(special.codec_begin,), **chosen)


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
