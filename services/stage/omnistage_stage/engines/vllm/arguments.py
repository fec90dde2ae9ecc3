"""`engineArgs` of the vllm engine.

The names are vLLM's own, so that its documentation applies; None leaves the choice to vLLM. What
this engine adds or presets is said at the field.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

__all__ = ["GenerationDefaults", "ModelArguments", "VllmArguments"]

Positive = Annotated[int, Meta(ge=1)]


class GenerationDefaults(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is used where a request says nothing; None: the model's own generation defaults."""

    max_tokens: Positive = 512
    """Also never more than the context has room for."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None


class ModelArguments(Struct, frozen=True, kw_only=True):
    """How the model is loaded."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    quantization: str | None = None
    trust_remote_code: bool = False
    """Runs Python code from the model's folder."""
    seed: int = 0
    max_model_len: Positive | None = None
    """Tokens of prompt and answer together; None: what the model was trained for."""


class VllmArguments(ModelArguments, frozen=True, kw_only=True):
    """All `engineArgs`: how the model is loaded, and what it may use."""

    max_num_seqs: Positive | None = None
    """Requests in one step; None: the stage's `max_running`."""
    max_num_batched_tokens: Positive | None = None
    """Tokens in one step; a longer prompt is read in several. None: vLLM's choice."""
    kv_cache_memory_bytes: Positive | None = None
    """None: 256 MiB on a CPU; on a GPU what `gpu_memory_utilization` leaves."""
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] | None = None
    tensor_parallel_size: Positive = 1
    enforce_eager: bool | None = None
    """None: eager on a CPU, vLLM's default on a GPU."""
    enable_prefix_caching: bool | None = None
    omp_threads: Positive | None = None
    """Threads of CPU kernels; None: `OMP_NUM_THREADS`, or 1 when that is unset. More than one needs
    as many idle cores: barriers between threads collapse on a busy machine."""
    hidden_states_layer: Annotated[int, Meta(ge=0)] | Literal["final"] | None = None
    """Which hidden states come out: those after this many layers (Hugging Face's
    `hidden_states[k]`; 0: the embeddings), or the last ones, normalised. None: the layer that the
    checkpoint's talker accepts, or the final one where the checkpoint names none."""
    defaults: GenerationDefaults = GenerationDefaults()
