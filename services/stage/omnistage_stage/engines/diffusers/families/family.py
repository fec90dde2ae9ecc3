"""What a split needs to know of one pipeline class.

A pipeline's `__call__` is one function from prompt to pixels. To run its first third elsewhere, one
must know under which names it takes embeddings that are already made, and when it wants negative
ones; to run its last third elsewhere, what it does with latents after the last step. Everything in
between is the pipeline's own code, called as it is.

Latents travel as the pipeline gives them (`output_type="latent"`), with one change: rows of patches
that a pipeline has folded into one dimension are unfolded into frames, rows and columns, by shape
only. So a decoder reads from the shape how large the result is, whoever made the latents.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, ClassVar

from msgspec import Struct

from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.diffusers.calling import Grid

__all__ = ["Embedding", "Family", "Need"]


class Need(Enum):
    """When a denoiser wants an embedding."""

    ALWAYS = auto()
    GUIDED = auto()
    """Whenever there is guidance."""
    OPTIONAL = auto()
    """With guidance, when a negative prompt was given."""


class Embedding(Struct, frozen=True, kw_only=True):
    """One tensor from the text encoder to the denoiser."""

    name: str
    """The argument of the pipeline's `__call__`, and the output's name."""
    need: Need = Need.ALWAYS
    is_mask: bool = False
    """Whether it is boolean; it travels as int64."""


class Family(ABC):
    """How one pipeline class is split. Without state; `pipeline` is an instance of that class.

    `values` are all arguments of the call by name, with the pipeline's defaults filled in.
    """

    kind: ClassVar[PayloadKind]
    """What it makes."""
    embeddings: ClassVar[tuple[Embedding, ...]]

    @abstractmethod
    def grid(self, pipeline: Any) -> Grid:
        """What sizes it can make."""

    @abstractmethod
    def encode(
        self, pipeline: Any, prompt: str, negative_prompt: str | None, values: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The embeddings of one prompt, by name; those that are not wanted are not in it."""

    @abstractmethod
    def decode(self, pipeline: Any, latents: Any, values: Mapping[str, Any], seed: int) -> Any:
        """What one item's latents are.

        Args:
            pipeline: With its VAE.
            latents: As `unfold` returns them, with a batch dimension of 1.
            values: Arguments of the call.
            seed: The seed that the latents were made with.

        Returns:
            An image [height, width, 3] or a video [frames, height, width, 3] of floats from 0 to 1,
            or a sound [channels, samples]; on the CPU.
        """

    @abstractmethod
    def sample_embeddings(self, pipeline: Any) -> dict[str, Any]:
        """Embeddings of no prompt in particular that its denoiser can take, for a trial."""

    @abstractmethod
    def sample_latents(self, pipeline: Any) -> Any:
        """Small latents that its decoder can take, as `unfold` returns them, for a trial."""

    def is_guided(self, values: Mapping[str, Any], *, negative: bool) -> bool:  # noqa: ARG002
        """Whether there is guidance away from a negative prompt.

        Args:
            values: Arguments of the call.
            negative: Whether there is a negative prompt.
        """
        return bool(values["guidance_scale"] > 1)

    def unfold(self, pipeline: Any, latents: Any, values: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """The pipeline's latents with frames, rows and columns in dimensions of their own."""
        return latents

    def rate_hz(self, pipeline: Any) -> int:  # noqa: ARG002
        """Samples or frames per second where neither stage nor request says; 0: it has none."""
        return 0
