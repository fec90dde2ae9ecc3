"""Hidden states out of a running model: rows of one layer, each position of a request once.

A forward hook sees the rows of all requests of a step in one matrix; vLLM's batch says which rows
are whose and at which position each request's begin. A request that was preempted is computed again
from its start, a long prompt comes in several steps: whatever comes, the position decides, and a row
that was kept once is not kept again. A position that never came would be a hole, and is an error.

Everything here happens in the step loop's thread. Foreign: torch, and the insides of vLLM's runner.
"""

from collections.abc import Callable
from typing import Any

from omnistage_common.errors import EngineFailed, SetupError
from omnistage_common.payloads import ElementType, Tensor, TensorHeader

__all__ = ["HiddenStates", "observed_layer"]


def observed_layer(asked: int | str | None, model_config: Any) -> int | None:
    """After how many layers hidden states are taken; None: after all of them and the norm.

    Args:
        asked: `engineArgs.hidden_states_layer`.
        model_config: vLLM's.

    Raises:
        SetupError: The model has fewer layers.
    """
    layers = int(model_config.hf_text_config.num_hidden_layers)
    if asked is None:
        talker = getattr(model_config.hf_config, "talker_config", None)
        asked = getattr(talker, "accept_hidden_layer", None)
    if asked in (None, "final", layers):
        return None
    if not 0 <= int(asked) < layers:
        raise SetupError(
            f"hidden states after layer {asked} do not exist: the model has {layers} layers",
            field="engineArgs.hidden_states_layer",
        )
    return int(asked)


class HiddenStates:
    """Collects the rows of every request in an engine."""

    def __init__(self, runner: Any, layer: int | None, *, of_prompts: bool) -> None:
        """Installs the hook.

        Args:
            runner: vLLM's model runner, in this process, with a model that runs eagerly.
            layer: What `observed_layer` says.
            of_prompts: Whether rows of prompts are wanted as well.

        Raises:
            SetupError: The model's layers cannot be told.
        """
        self._runner = runner
        self._of_prompts = of_prompts
        self._requests: dict[str, _Rows] = {}
        self._nothing: Any = None
        _observe(runner.model, layer, self._record)

    @property
    def requests(self) -> int:
        """Requests whose rows are collected."""
        return len(self._requests)

    def begin(self, request: str, prompt_tokens: int) -> None:
        """Collects the rows of a request from now on.

        Args:
            request: vLLM's internal id, with its suffix.
            prompt_tokens: Length of its prompt.
        """
        self._requests[request] = _Rows(prompt_tokens, of_prompt=self._of_prompts)

    def end(self, request: str) -> None:
        """Forgets a request and its rows."""
        self._requests.pop(request, None)

    def take(self, request: str, *, last: bool) -> tuple[Tensor | None, Tensor | None]:
        """What has come since the last call: rows of the prompt, and of what was generated.

        Args:
            request: vLLM's internal id.
            last: Whether the request has ended. Then the rows of what was generated are a tensor
                even if there never was one.
        """
        rows = self._requests[request]
        prompt, generated = rows.take()
        if last and not rows.has_generated:
            generated.append(self._nothing)
        return (
            _tensor(prompt) if prompt else None,
            _tensor(generated) if generated else None,
        )

    def _record(self, states: Any) -> None:
        if not self._requests:
            return
        batch = self._runner.input_batch
        bounds = self._runner.query_start_loc.np
        positions = batch.num_computed_tokens_cpu
        # One copy to the host for the whole step: the model's buffers are used again in the next.
        host = states[: int(bounds[len(batch.req_ids)])].detach().to("cpu", copy=True)
        self._nothing = host[:0]
        for index, request in enumerate(batch.req_ids):
            if rows := self._requests.get(request):
                rows.keep(int(positions[index]), host[int(bounds[index]) : int(bounds[index + 1])])


class _Rows:
    """The rows of one request that wait to be taken."""

    def __init__(self, prompt_tokens: int, *, of_prompt: bool) -> None:
        self._prompt_tokens = prompt_tokens
        self._next = 0 if of_prompt else prompt_tokens
        self._prompt: list[Any] = []
        self._generated: list[Any] = []
        self.has_generated = False

    def keep(self, position: int, rows: Any) -> None:
        """Keeps those of a step's rows that are new.

        Args:
            position: Where in the request the first one stands.
            rows: A matrix that nobody else changes.
        """
        known = self._next - position
        if known < 0:
            raise EngineFailed(
                f"hidden states of positions {self._next} to {position - 1} were never computed"
            )
        fresh = rows[known:]
        if not len(fresh):
            return
        of_prompt = max(0, self._prompt_tokens - self._next)
        self._next += len(fresh)
        if of_prompt:
            self._prompt.append(fresh[:of_prompt])
        if len(fresh) > of_prompt:
            self._generated.append(fresh[of_prompt:])
            self.has_generated = True

    def take(self) -> tuple[list[Any], list[Any]]:
        """Parts of the prompt, once it is complete, and of what was generated."""
        complete = self._next >= self._prompt_tokens
        prompt, generated = self._prompt if complete else [], self._generated
        self._prompt, self._generated = ([] if complete else self._prompt), []
        return prompt, generated


def _observe(model: Any, layer: int | None, record: Callable[[Any], None]) -> None:
    """Has `record` called with the hidden states `[tokens, width]` of every step."""

    def after(_module: Any, _arguments: Any, output: Any) -> None:
        record(output[0] if isinstance(output, tuple) else output)

    def after_layer(_module: Any, _arguments: Any, output: Any) -> None:
        # A layer of vLLM hands on what is still to be added to the residual beside the residual.
        record(output[0] + output[1] if isinstance(output, tuple) else output)

    def before(_module: Any, arguments: Any, named: Any) -> None:
        record(named["hidden_states"] if "hidden_states" in named else arguments[1])

    if layer is None:
        model.register_forward_hook(after)
        return
    language = model.get_language_model() if hasattr(model, "get_language_model") else model
    layers = getattr(getattr(language, "model", None), "layers", None)
    if layers is None:
        raise SetupError(
            f"the layers of {type(model).__name__} are unknown; only the final hidden states can "
            "be taken out of it",
            field="engineArgs.hidden_states_layer",
        )
    if layer:
        layers[layer - 1].register_forward_hook(after_layer)
    else:
        layers[0].register_forward_pre_hook(before, with_kwargs=True)


def _tensor(parts: list[Any]) -> Tensor:
    """Rows as a tensor of ours, in the element type that they have."""
    import torch  # noqa: PLC0415

    rows = parts[0] if len(parts) == 1 else torch.cat(parts)
    header = TensorHeader(
        element_type=ElementType(str(rows.dtype).removeprefix("torch.")), shape=tuple(rows.shape)
    )
    # By way of bytes, since numpy has no bfloat16.
    flat = rows.contiguous().reshape(-1).view(torch.uint8).numpy()
    return Tensor(header=header, data=memoryview(flat))
