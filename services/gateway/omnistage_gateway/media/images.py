"""Images as clients send and receive them, to and from the tensors that stages exchange.

What a client sent is checked before anything is computed with it: the size that a file claims comes
first, since a few kilobytes can unfold to gigabytes. What a stage made must be an image of the shape
that the contract says. Pillow is imported on first use, or when a gateway starts whose pipelines take
or make images. Nothing here knows HTTP or OpenAI's shapes. All of it computes in the caller's thread,
for milliseconds per megapixel, so an event loop hands it to a worker thread.
"""

from types import ModuleType
from typing import Final

from omnistage_common.errors import EngineFailed, MissingDependency
from omnistage_common.payloads import ElementType, Tensor
from omnistage_gateway.media.formats import EncodedImage, ImageFormat

__all__ = [
    "MAX_PIXELS",
    "RGB",
    "decode_image",
    "encode_image",
    "prepare_images",
]

MAX_PIXELS: Final = 20_000_000
"""Pixels that all images of a request may have together, unless the caller sets another limit."""
RGB: Final = 3
"""Channels of an image."""
_DIMENSIONS: Final = 3


def decode_image(encoded: EncodedImage, *, max_pixels: int = MAX_PIXELS) -> Tensor:
    """The pixels of an image input, the right way up.

    Args:
        encoded: What the client sent: PNG, JPEG, WebP, or GIF, of which the first frame counts.
        max_pixels: A larger image is refused before it is decoded.

    Returns:
        uint8 `[height, width, 3]`, RGB; what is transparent lies on white.

    Raises:
        InvalidRequest: Malformed, empty, too large or of another format; names the field.
        MissingDependency: Pillow is not installed.
    """
    tensor: Tensor = _codec().decode(encoded, max_pixels)
    return tensor


def encode_image(image: Tensor, image_format: ImageFormat, *, quality: int = 100) -> bytes:
    """An answer's image as a file.

    Args:
        image: uint8 `[height, width, 3]`, RGB.
        image_format: The format.
        quality: Of JPEG and WebP, 0 to 100; PNG loses nothing.

    Raises:
        EngineFailed: It is no such tensor, or the format has no image of that size.
        MissingDependency: Pillow is not installed.
    """
    header = image.header
    if (
        header.element_type is not ElementType.UINT8
        or len(header.shape) != _DIMENSIONS
        or header.shape[-1] != RGB
        or 0 in header.shape
        or header.length != len(image.data)
    ):
        raise EngineFailed(
            "an image must be uint8 of shape [height, width, 3]; the stage made"
            f" {header.element_type.value} {list(header.shape)} in {len(image.data)} bytes"
        )
    file: bytes = _codec().encode(image, image_format, quality)
    return file


def prepare_images() -> None:
    """Imports what images need, so that the first one does not wait for it.

    Raises:
        MissingDependency: Pillow is not installed.
    """
    _codec()


def _codec() -> ModuleType:
    try:
        # Imported on first use: most gateways never see an image.
        from omnistage_gateway.media import pillow  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependency(
            f"images need Pillow ({error}); install `omnistage[gateway]`"
        ) from error
    return pillow
