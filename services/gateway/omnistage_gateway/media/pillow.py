"""The Pillow half of `omnistage_gateway.media.images`; imported there, on first use.

What a client sends is hostile until shown otherwise. A header is read first and its claims are checked
before a pixel is decoded; only the decoders of four formats are ever tried; and whatever a decoder
stumbles over becomes one error that names the field.
"""

import base64
import binascii
import io
import struct
import warnings
import zlib
from typing import Any, Final

from PIL import Image, ImageOps

from omnistage_common.errors import EngineFailed, InvalidRequest, truncated
from omnistage_common.payloads import ElementType, Tensor, TensorHeader
from omnistage_gateway.media.formats import EncodedImage, ImageFormat

__all__ = ["decode", "encode"]

# Pillow's own guard warns at one size and raises at another; ours is exact and comes first.
Image.MAX_IMAGE_PIXELS = None
# What it warns of is damage to metadata, which a client could fill the log with.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")

_FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF")
_SIXTEEN_TO_EIGHT_BITS: Final = 1 / 256
_PNG_EFFORT: Final = 1
"""Of zlib, 1 to 9. A megapixel takes 0.10 to 0.13 s at 1 and 0.17 to 0.65 s at 6, which saves a
twelfth to a seventh of the bytes."""

_BROKEN: Final = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)
"""What Pillow's decoders raise over damaged files."""


def decode(encoded: EncodedImage, max_pixels: int) -> Tensor:
    """See `omnistage_gateway.media.images.decode_image`."""
    where = encoded.field
    try:
        data = base64.b64decode(encoded.base64, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(
            f"`{where}` is not base64: {error}; send `data:image/png;base64,` and the file in base64"
            " with padding",
            field=where,
        ) from error
    if not data:
        raise InvalidRequest(f"`{where}` holds no data; send the image in base64", field=where)
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_size(image, where, max_pixels)
            pixels = _rgb(ImageOps.exif_transpose(image))
    except Image.UnidentifiedImageError as error:
        raise InvalidRequest(
            f"`{where}` is not an image; send one as PNG, JPEG, WebP or GIF", field=where
        ) from error
    except _BROKEN as error:
        raise InvalidRequest(
            f"`{where}` is a damaged image: {truncated(str(error) or type(error).__name__)}",
            field=where,
        ) from error
    return Tensor(
        header=TensorHeader(element_type=ElementType.UINT8, shape=(pixels.height, pixels.width, 3)),
        data=pixels.tobytes(),
    )


def encode(image: Tensor, image_format: ImageFormat, quality: int) -> bytes:
    """See `omnistage_gateway.media.images.encode_image`."""
    height, width, _ = image.header.shape
    pixels = Image.frombuffer("RGB", (width, height), image.data, "raw", "RGB", 0, 1)
    target = io.BytesIO()
    try:
        if image_format is ImageFormat.PNG:
            pixels.save(target, "PNG", compress_level=_PNG_EFFORT)
        else:
            pixels.save(target, image_format.value, quality=quality)
    except (OSError, ValueError) as error:
        raise EngineFailed(
            f"an image of {width}x{height} cannot be encoded as {image_format.value}: "
            f"{truncated(str(error))}"
        ) from error
    return target.getvalue()


def _check_size(image: Any, where: str, max_pixels: int) -> None:
    pixels = image.width * image.height
    if not pixels:
        raise InvalidRequest(f"`{where}` has no pixels; send an image with some", field=where)
    if pixels > max_pixels:
        raise InvalidRequest(
            f"`{where}` has {image.width}x{image.height} pixels, {max_pixels} of them are left of"
            " those that a request may have; send a smaller image",
            field=where,
        )


def _rgb(image: Any) -> Any:
    """Whatever a file holds, as 8-bit RGB."""
    if image.mode.startswith("I"):
        image = image.point(lambda value: value * _SIXTEEN_TO_EIGHT_BITS).convert("L")
    if not image.has_transparency_data:
        return image.convert("RGB")
    transparent = image.convert("RGBA")
    white = Image.new("RGBA", transparent.size, "white")
    return Image.alpha_composite(white, transparent).convert("RGB")
