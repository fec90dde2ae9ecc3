"""The body of an answer that consists of images, and the events of one that is streamed; in OpenAI's shapes."""

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from omnistage_gateway.media.formats import ImageFormat
from omnistage_gateway.openai.answers import RequestReport
from omnistage_gateway.openai.events import named_event

__all__ = [
    "ImagesAnswer",
    "MadeImage",
    "image_progress",
    "images_body",
    "images_completed",
]

_COMPLETED: Final = "image_generation.completed"
_PROGRESS: Final = "image_generation.progress"
_ENCODE: Final = msgspec.json.Encoder().encode


class MadeImage(Struct, frozen=True, kw_only=True):
    """An image of an answer, encoded."""

    data: bytes
    format: ImageFormat
    width: int
    """Pixels."""
    height: int
    """Pixels."""

    @property
    def size(self) -> str:
        """Width and height as OpenAI writes them."""
        return f"{self.width}x{self.height}"


class ImageItem(Struct, frozen=True):
    """An image, on the wire."""

    b64_json: bytes
    revised_prompt: None = None
    url: None = None


class ImageTokens(Struct, frozen=True):
    """Tokens by what they stand for, on the wire."""

    image_tokens: int
    text_tokens: int


class ImageUsage(Struct, frozen=True):
    """Tokens, on the wire; images are not counted in any."""

    input_tokens: int
    input_tokens_details: ImageTokens
    output_tokens: int
    total_tokens: int


class ImagesAnswer(Struct, frozen=True):
    """The whole body, on the wire."""

    created: int
    data: tuple[ImageItem, ...]
    output_format: str
    size: str
    omnistage: RequestReport
    usage: ImageUsage | UnsetType = UNSET
    background: Literal["opaque"] = "opaque"


def images_body(
    images: Sequence[MadeImage], *, created: int, prompt_tokens: int, report: RequestReport
) -> bytes:
    """The body of an answer.

    Args:
        images: At least one.
        created: Seconds since the Unix epoch.
        prompt_tokens: Tokens of the prompt, 0 when nothing counts them.
        report: The extension object.
    """
    return _ENCODE(
        ImagesAnswer(
            created,
            tuple(ImageItem(image.data) for image in images),
            images[0].format.value,
            images[0].size,
            report,
            _usage(prompt_tokens) if prompt_tokens else UNSET,
        )
    )


def image_progress(stage: str, done: int, total: int) -> bytes:
    """The event of a step: an extension."""
    return named_event(_PROGRESS, {"type": _PROGRESS, "stage": stage, "done": done, "total": total})


def images_completed(
    images: Sequence[MadeImage], *, created: int, prompt_tokens: int, report: RequestReport
) -> bytes:
    """One event for each image; the last one has the extension object. Arguments as above."""
    events = [_completed(image, index, created) for index, image in enumerate(images)]
    events[-1] |= {"usage": _usage(prompt_tokens), "omnistage": report}
    return b"".join(named_event(_COMPLETED, event) for event in events)


def _completed(image: MadeImage, index: int, created: int) -> dict[str, Any]:
    return {
        "type": _COMPLETED,
        "b64_json": image.data,
        "index": index,
        "created_at": created,
        "size": image.size,
        "output_format": image.format.value,
        "quality": "auto",
        "background": "opaque",
        "usage": _usage(0),
    }


def _usage(prompt_tokens: int) -> ImageUsage:
    return ImageUsage(prompt_tokens, ImageTokens(0, prompt_tokens), 0, prompt_tokens)
