"""What fields of several endpoints have in common: their ranges, and what they are in prose.

Ranges are part of the types, so they reach the published JSON schema as well.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from omnistage_common.errors import InvalidRequest
from omnistage_common.payloads import DiffusionParameters

__all__ = [
    "DIFFUSION_EXPECTED",
    "ChunkFrames",
    "DiffusionFields",
    "NonEmpty",
    "Seed",
    "Side",
    "VoiceReference",
    "check_pixels",
    "diffusion_parameters",
    "size_of",
    "voice_name",
]

MIN_SIDE: Final = 8
MAX_SIDE: Final = 8192
MAX_MADE_PIXELS: Final = 4096 * 4096
"""Of one image, or of one frame of a video."""

NonEmpty = Annotated[str, Meta(min_length=1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Side = Annotated[int, Meta(ge=MIN_SIDE, le=MAX_SIDE)]
ChunkFrames = Annotated[int, Meta(ge=1, le=1000)]
_Scale = Annotated[float, Meta(ge=0, le=20)]
_SIZE: Final = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")


class VoiceReference(Struct, frozen=True, forbid_unknown_fields=True):
    """A voice by its id."""

    id: NonEmpty


class DiffusionFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to denoise, for every endpoint that may have to; extensions but for `size`."""

    size: str | None = None
    """`auto`, or width and height in pixels, e.g. `1024x768`."""
    negative_prompt: str | None = None
    num_inference_steps: Annotated[int, Meta(ge=1, le=200)] | None = None
    guidance_scale: _Scale | None = None
    true_cfg_scale: _Scale | None = None


DIFFUSION_EXPECTED: Final[Mapping[str, str]] = {
    "guidance_scale": "a number from 0 to 20",
    "num_inference_steps": "a whole number from 1 to 200",
    "true_cfg_scale": "a number from 0 to 20",
}
"""What `DiffusionFields` hold, in prose."""


def size_of(size: str | None) -> tuple[int | None, int | None]:
    """Width and height; None and None for `auto`.

    Raises:
        InvalidRequest: It is no size, or out of range.
    """
    if size is None or size == "auto":
        return None, None
    sides = _SIZE.fullmatch(size)
    if sides is None:
        raise InvalidRequest(
            '`size`: expected "auto", or width and height such as "1024x768"', field="size"
        )
    width, height = int(sides.group(1)), int(sides.group(2))
    if not all(MIN_SIDE <= side <= MAX_SIDE for side in (width, height)):
        raise InvalidRequest(f"`size`: sides go from {MIN_SIDE} to {MAX_SIDE} pixels", field="size")
    check_pixels(width, height, "size")
    return width, height


def check_pixels(width: int, height: int, field: str) -> None:
    """Returns when an image of that size may be asked for.

    Raises:
        InvalidRequest: It has too many pixels.
    """
    if width * height > MAX_MADE_PIXELS:
        raise InvalidRequest(
            f"`{field}`: {width}x{height} are {width * height} pixels; at most {MAX_MADE_PIXELS}"
            " are made",
            field=field,
        )


def diffusion_parameters(
    wire: DiffusionFields, *, width: int | None, height: int | None, count: int = 1
) -> DiffusionParameters:
    """The fields that all endpoints share, and what each has worked out by itself."""
    return DiffusionParameters(
        width=width,
        height=height,
        steps=wire.num_inference_steps,
        guidance_scale=wire.guidance_scale,
        true_cfg_scale=wire.true_cfg_scale,
        negative_prompt=wire.negative_prompt,
        count=count,
    )


def voice_name(voice: str | VoiceReference | None) -> str | None:
    """The voice's name, however it was given."""
    return voice.id if isinstance(voice, VoiceReference) else voice
