"""One thing to make, and what makes two of them alike enough to be made together."""

from collections.abc import Hashable, Mapping
from typing import Any

from msgspec import Struct

from omnistage_common.ids import OutputName
from omnistage_common.payloads import Payload

__all__ = ["Asked", "BatchKey", "Job", "Made"]

BatchKey = tuple[Hashable, ...]
"""Jobs with equal keys may be computed in one call."""

Made = tuple[tuple[OutputName, Payload], ...]
"""What a job makes: named outputs."""


class Asked(Struct, frozen=True, kw_only=True):
    """What one request asks of a stage, checked."""

    arguments: Mapping[str, Any]
    """Keyword arguments of the pipeline's call, without prompts, seeds and tensors."""
    prompt: str = ""
    negative_prompt: str | None = None
    seed: int = 0
    """Of the first thing to make; the next one has the next number."""
    count: int = 1
    tensors: Mapping[str, tuple[Any, ...]] = {}
    """Port name -> torch tensors that arrived there, in order."""


class Job(Struct, frozen=True, kw_only=True):
    """One image, video or sound to make or to decode, or one prompt to encode."""

    arguments: Mapping[str, Any]
    prompt: str = ""
    negative_prompt: str | None = None
    seed: int = 0
    tensors: Mapping[str, Any] = {}
    """Name -> torch tensor with a batch dimension of 1."""

    @property
    def key(self) -> BatchKey:
        """Equal for jobs of one shape: same arguments, tensors of the same shapes."""
        return (
            self.negative_prompt is None,
            *((name, repr(value)) for name, value in sorted(self.arguments.items())),
            *((name, *tensor.shape) for name, tensor in sorted(self.tensors.items())),
        )
