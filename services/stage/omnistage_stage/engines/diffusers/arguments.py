"""`engineArgs` of the diffusers engine.

What a request may say has its counterpart in `defaults`, under the same name; what only diffusers
knows goes into `call`, under diffusers' name. Stages of one split pipeline are told the same
`defaults` and `call`: each takes what concerns it, and whether there is guidance concerns two.
"""

from enum import Enum
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

__all__ = [
    "BATCH_OF_HALF_PRECISION",
    "Component",
    "DiffusersArguments",
    "DiffusionDefaults",
    "DiffusionLimits",
]

BATCH_OF_HALF_PRECISION: Final = 4
"""Requests denoised together where `max_batch` says nothing and results are rounded anyway."""

Positive = Annotated[int, Meta(ge=1)]
Scale = Annotated[float, Meta(ge=0)]


class Component(Enum):
    """Which part of a pipeline a stage computes."""

    WHOLE = "whole"
    TEXT_ENCODER = "text-encoder"
    DENOISER = "denoiser"
    DECODER = "decoder"


class DiffusionDefaults(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is used where a request says nothing; None: the pipeline's own default."""

    width: Positive | None = None
    """Pixels."""
    height: Positive | None = None
    """Pixels."""
    steps: Positive | None = None
    guidance_scale: Scale | None = None
    true_cfg_scale: Scale | None = None
    negative_prompt: str | None = None
    frames: Positive | None = None
    frame_rate: Positive | None = None
    """Frames per second of a video; None: the pipeline's own default, or 16 where it has none."""
    seconds: Annotated[float, Meta(gt=0)] | None = None
    """Length of a sound."""
    max_sequence_length: Positive | None = None
    """Tokens of a prompt."""


class DiffusionLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request may ask for at most; more is refused."""

    max_pixels: Positive = 2048 * 2048
    """Width times height."""
    max_steps: Positive = 200
    max_frames: Positive = 257
    max_count: Positive = 10
    """Images, videos or sounds."""


class DiffusersArguments(Struct, frozen=True, kw_only=True):
    """All `engineArgs`."""

    component: Component = Component.WHOLE
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto`: float32 on a CPU, bfloat16 on a GPU."""
    device: Annotated[str, Meta(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """`auto`: a GPU where there is one."""
    defaults: DiffusionDefaults = DiffusionDefaults()
    limits: DiffusionLimits = DiffusionLimits()
    max_batch: Positive | None = None
    """Images, videos or sounds denoised together; None: 1 in float32, where a batch would change
    the last bits, else `BATCH_OF_HALF_PRECISION`."""
    max_wait: Annotated[float, Meta(ge=0, le=10)] = 0.05
    """Seconds for which a request waits for company while the engine is idle."""
    call: dict[str, Any] = {}
    """Further keyword arguments of the pipeline's `__call__`."""
    vae_tiling: bool = False
    """Decode in tiles: less memory, seams possible."""
    vae_slicing: bool = False
    """Decode one by one: less memory where several are decoded."""
    omp_threads: Positive = 1
    """Threads of CPU kernels. More than one needs as many idle cores."""
