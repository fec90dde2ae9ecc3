"""The component `talker`, as far as it is the same in every family: requests in, frames out.

A family says in a subclass which ports it reads and how, which voices it has and what its model is;
its module also says what its codes are equal to. None of that is known here.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any, Generic, TypeVar, cast

from msgspec import structs

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import EngineFailed
from omnistage_common.ids import OutputName, new_request_id
from omnistage_common.payloads import Parameters, Payload
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, Outputs
from omnistage_stage.engines.torch.arguments import TalkerArguments
from omnistage_stage.engines.torch.components import ComponentSpec
from omnistage_stage.engines.torch.sampling import SamplingRule, seeded_generator
from omnistage_stage.engines.torch.speaking import BatchingSpeaker
from omnistage_stage.engines.torch.speech import SpeechJob, SpeechRequest
from omnistage_stage.engines.torch.stepping import StepLoop

__all__ = ["TalkerComponent", "chosen_rule"]

S = TypeVar("S", bound=SpeechJob)


class TalkerComponent(ABC, Generic[S]):
    """See `Component`.

    Args:
        spec: What it is told.
        ports: All that it reads, in the order in which it wants them where everything is there at
            once: the prompt first.
        needed: Those of them without which no request can be spoken.
        max_frames: Where nothing is said.
    """

    def __init__(
        self,
        spec: ComponentSpec,
        *,
        ports: Collection[str],
        needed: Collection[str],
        max_frames: int,
    ) -> None:
        self._spec = spec
        self._arguments = cast("TalkerArguments", spec.arguments)
        self._ports = tuple(ports)
        self._needed = frozenset(needed)
        self._max_frames = self._arguments.max_frames or max_frames
        self._speaker: BatchingSpeaker[S] | None = None
        self._steps: StepLoop[S] = StepLoop(self._make_speaker, name=f"talker-{spec.spec.stage}")

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
        """Speaks a frame for real."""
        request = EngineRequest(
            id=new_request_id(),
            inputs={OutputName(port): (piece,) for port, piece in self._probe_inputs().items()},
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

        result = await self._steps.run(
            self._job(request, max_frames=self._max_frames), self._feeds(request), emit
        )
        if not result.output_tokens:
            raise EngineFailed("the talker ended before it had said anything")
        return result

    async def close(self) -> None:
        """Ends the thread and frees the weights."""
        await self._steps.stop()
        self._speaker = None

    @abstractmethod
    def _load_speaker(self, *, slots: int | None) -> BatchingSpeaker[S]:
        """Loads the model, in the thread.

        Args:
            slots: As in `BatchingSpeaker`.

        Raises:
            InvalidWeights: The checkpoint lacks something.
        """

    @abstractmethod
    def _probe_inputs(self) -> Mapping[str, Payload]:
        """A short prompt and answer, by port."""

    @abstractmethod
    def _speaker_id(self, parameters: Parameters) -> int:
        """The id of the voice that a request asks for.

        Raises:
            InvalidRequest: There is no such voice.
        """

    @abstractmethod
    def _speech(self, request: SpeechRequest) -> Callable[[], S]:
        """What makes the job of a request, in the thread."""

    @abstractmethod
    def _reader(self, port: str) -> Callable[[Payload], Any]:
        """What makes of a piece, as memory of our own, what the job is fed.

        It raises `EngineFailed` where the piece is not what the port takes.
        """

    def _make_speaker(self) -> BatchingSpeaker[S]:
        placement = self._spec.placement
        placement.enter()
        for section in ("thinker_config", "talker_config"):
            self._spec.checkpoint.require(section)
        batching = self._arguments.batching
        exact = placement.exact if batching == "auto" else batching == "exact"
        self._speaker = self._load_speaker(slots=None if exact else self._spec.spec.max_running + 1)
        return self._speaker

    def _job(self, request: EngineRequest, *, max_frames: int) -> Callable[[], S]:
        ports = frozenset(self._ports).intersection({*request.inputs, *request.streams})
        missing = self._needed - ports
        if missing:
            raise EngineFailed(f"the talker needs `{min(missing)}`; the pipeline brings none")
        return self._speech(
            SpeechRequest(
                speaker=self._speaker_id(request.parameters),
                generator=seeded_generator(request.parameters.seed, self._spec.placement.device),
                max_frames=max_frames,
                ports=ports,
                streamed=ports.intersection(request.streams),
            )
        )

    def _feeds(self, request: EngineRequest) -> dict[str, tuple[AsyncIterator[Payload], Any]]:
        return {
            port: (request.pieces(OutputName(port)), self._reader(port))
            for port in self._ports
            if port in request.inputs or port in request.streams
        }


def chosen_rule(
    usual: SamplingRule, arguments: TalkerArguments, *, suppressed: Collection[int]
) -> SamplingRule:
    """How codes are sampled: as usual, but for what the arguments say otherwise.

    Args:
        usual: How the model's own `generate` samples where nothing is said.
        arguments: The component's.
        suppressed: Codes that are never chosen.
    """
    chosen = {
        name: value
        for name in ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty")
        if (value := getattr(arguments, name)) is not None
    }
    return structs.replace(usual, suppressed=tuple(sorted(suppressed)), **chosen)
