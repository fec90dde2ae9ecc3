"""The body of `POST /v1/images/generations`: its wire shape, and what the gateway makes of it.

The manner is that of chat completions (`omnistage_gateway.openai.chat_request`): what changes the
image is understood or refused by name.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from omnistage_common.errors import InvalidRequest
from omnistage_common.ids import ModelName
from omnistage_common.payloads import Conversation, Message, Parameters, TextPart
from omnistage_gateway.media.formats import ImageFormat
from omnistage_gateway.openai.fields import (
    DIFFUSION_EXPECTED,
    DiffusionFields,
    NonEmpty,
    Seed,
    diffusion_parameters,
    size_of,
)
from omnistage_gateway.openai.refusals import BodyReader, BodyRules, Unsupported, one_of

__all__ = [
    "IMAGE_UNSUPPORTED",
    "ImageGenerationBody",
    "ImageRequest",
    "parse_image_request",
]

_FULL_QUALITY: Final = 100


class ImageGenerationBody(DiffusionFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole body, on the wire; flat, as OpenAI's schema is."""

    model: NonEmpty
    prompt: NonEmpty
    n: Annotated[int, Meta(ge=1, le=10)] | None = None
    stream: bool | None = None
    partial_images: Annotated[int, Meta(ge=0, le=3)] | None = None
    """Without effect: steps are reported in their place."""
    response_format: Literal["b64_json"] | None = None
    output_format: ImageFormat | None = None
    output_compression: Annotated[int, Meta(ge=0, le=100)] | None = None
    seed: Seed | None = None
    """An extension."""
    safety_identifier: str | None = None
    """This and all below change no image and are accepted without effect."""
    moderation: Literal["auto", "low"] | None = None
    user: str | None = None


class ImageRequest(Struct, frozen=True, kw_only=True):
    """What a client asks for."""

    model: ModelName
    conversation: Conversation
    """One message of role user: the prompt."""
    parameters: Parameters
    count: int
    """Images."""
    format: ImageFormat
    quality: int
    """Of JPEG and WebP, 0 to 100."""
    stream: bool
    denoising_field: str
    """A field that was sent and means something only to a model that denoises."""


_BY_STEPS: Final = "leave it out and set `num_inference_steps`"
_NO_MOTION: Final = "leave it out; images here do not move"

IMAGE_UNSUPPORTED: Final[Mapping[str, Unsupported]] = {
    # OpenAI's own.
    "background": Unsupported(
        remedy="leave it out; images here are opaque", off=("auto", "opaque")
    ),
    "complexity": Unsupported(remedy=_BY_STEPS),
    "frame_count": Unsupported(remedy=_NO_MOTION),
    "frame_duration_ms": Unsupported(remedy=_NO_MOTION),
    "quality": Unsupported(remedy=_BY_STEPS, off=("auto", "standard")),
    "style": Unsupported(remedy="leave it out and describe the style in the prompt"),
    "svg": Unsupported(remedy="leave it out; images here are made of pixels"),
    # Extensions of other servers that clients pass along.
    "bot_task": Unsupported(remedy="leave it out; the prompt is taken as it is"),
    "extra_params": Unsupported(remedy="leave it out; every parameter has a field of its own"),
    "flow_shift": Unsupported(remedy="leave it out; the model's schedule is used"),
    "generator_device": Unsupported(remedy="leave it out; `seed` gives one image on every device"),
    "layers": Unsupported(remedy="leave it out; images here have one layer", off=(1,)),
    "lora": Unsupported(remedy="leave it out; the model is used as it is"),
    "return_stage_metrics": Unsupported(
        remedy="leave it out; `omnistage.stages` always has them", off=(False, True)
    ),
    "system_prompt": Unsupported(remedy="leave it out and write it into the prompt"),
    "use_system_prompt": Unsupported(remedy="leave it out and write it into the prompt"),
    "vae_use_slicing": Unsupported(remedy="leave it out; the pipeline sets it", off=(False,)),
    "vae_use_tiling": Unsupported(remedy="leave it out; the pipeline sets it", off=(False,)),
}
"""Known fields that would change the image, and what to do instead."""

_EXPECTED: Final[Mapping[str, str]] = {
    "": "an object with `model` and `prompt`",
    "model": "the name of a model",
    "moderation": '"auto" or "low"',
    "n": "a whole number from 1 to 10",
    "output_compression": "a whole number from 0 to 100",
    "output_format": one_of(ImageFormat),
    "partial_images": "a whole number from 0 to 3",
    "prompt": "a description of the image",
    "response_format": '"b64_json"',
    "seed": "a whole number of at most 64 bits",
    **DIFFUSION_EXPECTED,
}


def _special(path: str, pattern: str, value: Any) -> InvalidRequest | None:
    if pattern == "response_format" and value == "url":
        return InvalidRequest(
            "`response_format`: images are not kept, so there is no URL of them; leave it out or"
            ' send "b64_json"',
            field=path,
        )
    return None


_BODIES: Final = BodyReader(
    ImageGenerationBody,
    BodyRules(expected=_EXPECTED, unsupported=IMAGE_UNSUPPORTED, special=_special),
)


def parse_image_request(body: bytes) -> ImageRequest:
    """The request that a body holds.

    Args:
        body: JSON as the client sent it.

    Raises:
        InvalidRequest: The field at fault is named; `body` when it is not JSON.
    """
    wire = _BODIES.read(body)
    if not wire.prompt.strip():
        raise InvalidRequest("`prompt` is blank; describe the image", field="prompt")
    image_format = wire.output_format or ImageFormat.PNG
    quality = _FULL_QUALITY if wire.output_compression is None else wire.output_compression
    if image_format is ImageFormat.PNG and quality != _FULL_QUALITY:
        raise InvalidRequest(
            '`output_compression` is for `output_format` "jpeg" and "webp"; png loses nothing',
            field="output_compression",
        )
    width, height = size_of(wire.size)
    message = Message(role="user", parts=(TextPart(text=wire.prompt),))
    count = wire.n or 1
    return ImageRequest(
        model=ModelName(wire.model),
        conversation=Conversation(messages=(message,)),
        parameters=Parameters(
            seed=wire.seed,
            diffusion=diffusion_parameters(wire, width=width, height=height, count=count),
        ),
        count=count,
        format=image_format,
        quality=quality,
        stream=bool(wire.stream),
        denoising_field=_denoising_field(wire, width),
    )


def _denoising_field(wire: ImageGenerationBody, width: int | None) -> str:
    if width is not None:
        return "size"
    if wire.n is not None and wire.n > 1:
        return "n"
    for name in ("negative_prompt", "num_inference_steps", "guidance_scale", "true_cfg_scale"):
        if getattr(wire, name) is not None:
            return name
    return ""
