"""vLLM's in-process engine as a `Core` (foreign: vllm).

One thread makes it, steps it and closes it. Hidden states are collected only where they are asked
for: without them a step does nothing more than vLLM does.
"""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from omnistage_common.errors import EngineFailed, InvalidRequest, OmnistageError, truncated
from omnistage_stage.engines.protocol import FinishReason
from omnistage_stage.engines.vllm.hidden_states import HiddenStates, observed_layer
from omnistage_stage.engines.vllm.outputs import Made
from omnistage_stage.engines.vllm.positions import PromptPositions
from omnistage_stage.engines.vllm.prompting import Generation, Prompt
from omnistage_stage.engines.vllm.reading import VllmReader
from omnistage_stage.engines.vllm.stepping import Finish, Piece

__all__ = ["Order", "VllmCore", "model_runner"]

Order = tuple[Prompt, Generation]
"""What to read, and how to generate."""

_FINISH: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class _Held(Struct, kw_only=True):
    """A request in the engine."""

    name: str
    """vLLM's internal id."""
    read: int
    """Tokens of the prompt."""
    written: int = 0
    """Tokens generated so far."""


class VllmCore:
    """An `LLMEngine` and the requests in it."""

    def __init__(self, engine: Any) -> None:
        from vllm import SamplingParams  # noqa: PLC0415
        from vllm.exceptions import VLLMClientError  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        self._engine = engine
        self._sampling = SamplingParams
        self._delta = RequestOutputKind.DELTA
        self._refusals = (VLLMClientError, ValueError)
        self._model_defaults: dict[str, Any] = engine.model_config.get_diff_sampling_param()
        self._stop_tokens = _stop_tokens(engine.model_config)
        self._held: dict[int, _Held] = {}
        self._hidden: HiddenStates | None = None
        self._positions: PromptPositions | None = None
        self.reader = VllmReader(engine)

    @property
    def active(self) -> int:
        """Requests in the engine."""
        return len(self._held)

    def observe(self, layer: int | str | None, *, of_prompts: bool) -> None:
        """Has hidden states collected from now on.

        Args:
            layer: `engineArgs.hidden_states_layer`.
            of_prompts: Whether those of prompts are wanted as well.

        Raises:
            SetupError: The model has no such layer.
        """
        self._hidden = HiddenStates(
            model_runner(self._engine),
            observed_layer(layer, self._engine.model_config),
            of_prompts=of_prompts,
        )

    def tell_positions(self) -> None:
        """Has positions of prompts handed over from now on.

        Raises:
            SetupError: The model's have one dimension.
        """
        self._positions = PromptPositions(model_runner(self._engine))

    def add(self, ticket: int, order: Order) -> OmnistageError | None:
        """Takes a request in; returns why it cannot."""
        prompt, generation = order
        try:
            name = self._engine.add_request(
                str(ticket), prompt.engine_input, self._sampling_parameters(generation)
            )
        except self._refusals as error:
            refusal = InvalidRequest(f"the engine refuses the request: {truncated(str(error))}")
            refusal.__cause__ = error
            return refusal
        self._held[ticket] = _Held(name=name, read=len(prompt.tokens))
        if self._hidden is not None:
            self._hidden.begin(name, len(prompt.tokens))
        if self._positions is not None:
            self._positions.begin(name, len(prompt.tokens))
        return None

    def abort(self, tickets: Sequence[int]) -> None:
        """Drops requests."""
        held = [ticket for ticket in tickets if self._forget(ticket)]
        self._engine.abort_request([str(ticket) for ticket in held])

    def step(self) -> list[Piece[Made]]:
        """Computes one step of all requests."""
        return [self._piece(output) for output in self._engine.step()]

    def close(self) -> None:
        """Frees weights, cache and process group."""
        from vllm.distributed import parallel_state  # noqa: PLC0415

        self._engine.engine_core.shutdown()
        self._engine.renderer.shutdown()
        self._engine = None
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()

    def _sampling_parameters(self, generation: Generation) -> Any:
        values: dict[str, Any] = {
            "max_tokens": generation.max_tokens,
            "temperature": generation.temperature,
            "top_p": generation.top_p,
            "seed": generation.seed,
            "stop": list(generation.stop),
            "presence_penalty": generation.presence_penalty,
            "frequency_penalty": generation.frequency_penalty,
            "ignore_eos": generation.ignore_eos,
            "stop_token_ids": None if generation.ignore_eos else self._stop_tokens,
            "output_kind": self._delta,
        }
        given = {name: value for name, value in values.items() if value is not None}
        return self._sampling(**(self._model_defaults | given))

    def _piece(self, output: Any) -> Piece[Made]:
        ticket = int(output.request_id)
        held = self._held[ticket]
        (completion,) = output.outputs
        held.written += len(completion.token_ids)
        prompt_rows, rows = (
            self._hidden.take(held.name, last=output.finished) if self._hidden else (None, None)
        )
        made = Made(
            text=completion.text,
            tokens=tuple(completion.token_ids),
            prompt_positions=self._positions.take(held.name) if self._positions else None,
            prompt_rows=prompt_rows,
            rows=rows,
        )
        if not output.finished:
            return Piece(ticket=ticket, content=made)
        self._forget(ticket)
        reason = _FINISH.get(completion.finish_reason)
        if reason is None:
            return Piece(
                ticket=ticket,
                end=EngineFailed(f"vLLM ended the request with {completion.finish_reason!r}"),
            )
        finish = Finish(reason=reason, input_tokens=held.read, output_tokens=held.written)
        return Piece(ticket=ticket, content=made, end=finish)

    def _forget(self, ticket: int) -> bool:
        held = self._held.pop(ticket, None)
        if held is not None and self._hidden is not None:
            self._hidden.end(held.name)
        if held is not None and self._positions is not None:
            self._positions.end(held.name)
        return held is not None


def model_runner(engine: Any) -> Any:
    """What runs the model of an engine that uses one device, in this process."""
    return engine.model_executor.driver_worker.worker.model_runner


def _stop_tokens(model_config: Any) -> list[int]:
    """What ends an answer beside the tokenizer's end and the generation config's, which vLLM knows.

    A checkpoint of several models says it for its language model by a name of its own.
    """
    said = model_config.try_get_generation_config().get(
        "thinker_eos_token_id", getattr(model_config.hf_config, "im_end_token_id", None)
    )
    return [] if said is None else [said] if isinstance(said, int) else list(said)
