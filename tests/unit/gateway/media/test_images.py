"""Images of answers and of well-meaning clients, in every format."""

import base64
import io
from typing import Any, Final

import numpy as np
import pytest
from PIL import Image

from omnistage_common.errors import EngineFailed
from omnistage_common.payloads import ElementType, Tensor, TensorHeader
from omnistage_gateway.media.formats import EncodedImage, ImageFormat
from omnistage_gateway.media.images import decode_image, encode_image

Pixels = np.ndarray[Any, Any]
HEIGHT: Final = 24
WIDTH: Final = 40


def picture() -> Pixels:
    """Left to right more red, top to bottom more green, and a blue corner."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    pixels[..., 0] = np.linspace(0, 255, WIDTH)
    pixels[..., 1] = np.linspace(0, 255, HEIGHT)[:, None]
    pixels[:8, :8] = (0, 0, 255)
    return pixels


def as_tensor(pixels: Pixels) -> Tensor:
    header = TensorHeader(element_type=ElementType.UINT8, shape=pixels.shape)
    return Tensor(header=header, data=pixels.tobytes())


def file_of(image: Image.Image, container: str, **options: Any) -> bytes:
    target = io.BytesIO()
    image.save(target, container, **options)
    return target.getvalue()


def decoded(data: bytes) -> Pixels:
    encoded = EncodedImage(base64=base64.b64encode(data).decode(), field="f")
    tensor = decode_image(encoded)
    assert tensor.header.element_type is ElementType.UINT8
    assert tensor.header.length == len(tensor.data)
    assert tensor.header.rate_hz == 0
    return np.frombuffer(tensor.data, np.uint8).reshape(tensor.header.shape)


def read(data: bytes) -> Pixels:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize(
    ("container", "options"),
    [
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
        ("JPEG", {"quality": 95, "subsampling": 0}),
        ("WEBP", {"quality": 95}),
    ],
)
def test_every_input_format_is_seen(container: str, options: dict[str, Any]) -> None:
    pixels = decoded(file_of(Image.fromarray(picture()), container, **options))
    lossless = container == "PNG" or "lossless" in options
    difference = np.abs(pixels.astype(int) - picture()).mean()
    assert pixels.shape == (HEIGHT, WIDTH, 3)
    assert difference == 0 if lossless else difference < 6


def test_of_a_moving_gif_the_first_frame_counts() -> None:
    red, blue = (Image.new("RGB", (5, 3), colour) for colour in ("red", "blue"))
    pixels = decoded(file_of(red, "GIF", save_all=True, append_images=[blue], duration=100))
    assert pixels.shape == (3, 5, 3)
    assert (pixels == (255, 0, 0)).all()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr"])
def test_every_kind_of_colour_becomes_rgb(mode: str) -> None:
    grey = Image.new("L", (4, 4), 255).convert("RGB").convert(mode)
    container = "JPEG" if mode in {"CMYK", "YCbCr"} else "PNG"
    pixels = decoded(file_of(grey, container))
    assert pixels.shape == (4, 4, 3)
    assert pixels.min() >= 250


def test_sixteen_bits_become_eight() -> None:
    deep = Image.fromarray(np.array([[0, 0x1234, 0x8000, 0xFFFF]], np.uint16))
    assert deep.mode == "I;16"
    assert decoded(file_of(deep, "PNG"))[0, :, 0].tolist() == [0, 0x12, 0x80, 0xFF]


@pytest.mark.parametrize("container", ["PNG", "WEBP"])
def test_what_is_transparent_lies_on_white(container: str) -> None:
    image = Image.new("RGBA", (4, 2), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (0, 0, 2, 2))
    options = {"lossless": True} if container == "WEBP" else {}
    pixels = decoded(file_of(image, container, **options))
    assert (pixels[:, :2] == (0, 0, 255)).all()
    assert (pixels[:, 2:] == 255).all()


def test_a_transparent_colour_of_a_palette_lies_on_white_too() -> None:
    image = Image.new("P", (2, 1), 1)
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.putpixel((0, 0), 0)
    pixels = decoded(file_of(image, "GIF", transparency=0))
    assert pixels.tolist() == [[[255, 255, 255], [255, 0, 0]]]


ORIENTATION: Final = 0x0112


@pytest.mark.parametrize("container", ["JPEG", "PNG", "WEBP"])
def test_a_camera_that_was_held_upright_gives_an_upright_image(container: str) -> None:
    image = Image.fromarray(picture())
    exif = image.getexif()
    exif[ORIENTATION] = 6  # turned a quarter to the right when shown
    options: dict[str, Any] = {"lossless": True} if container == "WEBP" else {}
    pixels = decoded(file_of(image, container, exif=exif, **options))
    assert pixels.shape == (WIDTH, HEIGHT, 3)
    assert np.abs(pixels.astype(int) - np.rot90(picture(), -1)).mean() < 8


@pytest.mark.parametrize("image_format", ImageFormat)
def test_an_answer_is_a_file_of_the_format(image_format: ImageFormat) -> None:
    data = encode_image(as_tensor(picture()), image_format)
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == image_format.value.upper()
        assert image.size == (WIDTH, HEIGHT)
    difference = np.abs(read(data).astype(int) - picture()).mean()
    assert difference == 0 if image_format is ImageFormat.PNG else difference < 8


@pytest.mark.parametrize("image_format", [ImageFormat.JPEG, ImageFormat.WEBP])
def test_less_quality_makes_less_of_a_file(image_format: ImageFormat) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    small, large = (
        len(encode_image(as_tensor(noise), image_format, quality=quality)) for quality in (10, 100)
    )
    assert small < large / 2


def test_what_goes_out_as_png_comes_back_bit_for_bit() -> None:
    noise = np.random.default_rng(1).integers(0, 256, (33, 17, 3), np.uint8)
    assert np.array_equal(decoded(encode_image(as_tensor(noise), ImageFormat.PNG)), noise)


def test_an_image_may_be_a_view_of_memory() -> None:
    tensor = as_tensor(picture())
    view = Tensor(header=tensor.header, data=memoryview(tensor.data))
    assert np.array_equal(read(encode_image(view, ImageFormat.PNG)), picture())


def odd(element_type: ElementType = ElementType.UINT8, *shape: int) -> Tensor:
    header = TensorHeader(element_type=element_type, shape=shape)
    return Tensor(header=header, data=bytes(header.length))


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (odd(ElementType.FLOAT32, 2, 2, 3), r"float32 \[2, 2, 3\]"),
        (odd(ElementType.UINT8, 2, 2), r"\[2, 2\]"),
        (odd(ElementType.UINT8, 2, 2, 4), r"\[2, 2, 4\]"),
        (odd(ElementType.UINT8, 1, 2, 2, 3), r"\[1, 2, 2, 3\]"),
        (odd(ElementType.UINT8, 0, 2, 3), r"\[0, 2, 3\]"),
        (Tensor(header=odd(ElementType.UINT8, 2, 2, 3).header, data=b"abc"), "in 3 bytes"),
    ],
)
def test_what_is_no_image_is_the_stages_fault(tensor: Tensor, words: str) -> None:
    with pytest.raises(EngineFailed, match=words):
        encode_image(tensor, ImageFormat.PNG)


def test_a_format_that_has_no_image_of_that_size_says_so() -> None:
    with pytest.raises(EngineFailed, match="20000x1 cannot be encoded as webp"):
        encode_image(odd(ElementType.UINT8, 1, 20_000, 3), ImageFormat.WEBP)
