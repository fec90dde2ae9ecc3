"""Images that are not what they claim to be: refused by their field, in bounded memory."""

import base64
import io
import random
import struct
import tracemalloc
import zlib
from typing import Any, Final

import pytest
from PIL import Image

from omnistage_common.errors import InvalidRequest
from omnistage_gateway.media.formats import EncodedImage
from omnistage_gateway.media.images import MAX_PIXELS, decode_image

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
"""Of damaged metadata, as in a gateway; here every warning is an error otherwise."""

FIELD: Final = "messages[0].content[1].image_url.url"


def file_of(container: str, size: tuple[int, int] = (40, 30), **options: Any) -> bytes:
    target = io.BytesIO()
    image = Image.radial_gradient("L").resize(size).convert("RGB")
    image.save(target, container, **options)
    return target.getvalue()


def refusal(data: bytes | str, max_pixels: int = MAX_PIXELS) -> InvalidRequest:
    text = data if isinstance(data, str) else base64.b64encode(data).decode()
    with pytest.raises(InvalidRequest) as caught:
        decode_image(EncodedImage(base64=text, field=FIELD), max_pixels=max_pixels)
    assert caught.value.field == FIELD
    assert len(caught.value.message) < 800
    return caught.value


def chunk(kind: bytes, data: bytes) -> bytes:
    """A piece of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_bomb(width: int, height: int) -> bytes:
    """A black PNG that is small whatever it unfolds to."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    packer = zlib.compressobj(9)
    row = bytes(1 + 3 * width)
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    magic = b"\x89PNG\r\n\x1a\n"
    return magic + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def claiming(width: int, height: int) -> bytes:
    """A PNG that claims a size and has not a pixel of it."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b""))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("", "holds no data"),
        ("@@@@", "not base64"),
        ("AAA", "not base64"),
        ("AAAA AAAA", "not base64"),
        ("ÄÄÄÄ", "not base64"),
        (b"garbage" * 100, "not an image"),
        (b"\x89PNG\r\n\x1a\n", "not an image"),
        (file_of("PNG")[:60], "damaged"),
        (file_of("PNG")[:-30], "damaged"),
        (file_of("JPEG")[:200], "damaged"),
        (file_of("WEBP")[:60], "damaged"),
        (file_of("BMP"), "not an image"),
        (file_of("TIFF"), "not an image"),
        (file_of("PPM"), "not an image"),
        (file_of("PDF"), "not an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
        (b"GIF89a\x00\x00\x00\x00\x00\x00\x00;", "not an image"),
    ],
)
def test_broken_data_is_refused_by_its_field(data: bytes | str, words: str) -> None:
    error = refusal(data)
    assert words in error.message
    assert "0x" not in error.message


@pytest.mark.parametrize(
    "data",
    [
        claiming(5_000, 5_000),
        claiming(20_000_001, 1),
        claiming(2**31 - 1, 2**31 - 1),
        file_of("GIF")[:6] + struct.pack("<HH", 65_535, 65_535) + file_of("GIF")[10:],
        png_bomb(6_000, 6_000),
    ],
    ids=["larger", "longer", "largest", "gif", "bomb"],
)
def test_what_unfolds_to_too_much_is_refused_before_it_does(data: bytes) -> None:
    assert len(data) < 200_000
    tracemalloc.start()
    try:
        error = refusal(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "pixels" in error.message
    assert peak < 4 * 2**20


def test_the_limit_is_exact_and_the_callers() -> None:
    data = base64.b64encode(file_of("PNG", (40, 30))).decode()
    encoded = EncodedImage(base64=data, field=FIELD)
    assert decode_image(encoded, max_pixels=1_200).header.shape == (30, 40, 3)
    assert "40x30 pixels, 1199 of them" in refusal(data, max_pixels=1_199).message


def test_a_bomb_of_words_is_refused() -> None:
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(80 * 2**20), 9))
    image = file_of("PNG")
    at = image.index(b"IDAT") - 4
    tracemalloc.start()
    try:
        error = refusal(image[:at] + text + image[at:])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "damaged" in error.message
    assert peak < 8 * 2**20


@pytest.mark.parametrize("container", ["PNG", "JPEG", "WEBP", "GIF"])
def test_random_damage_is_seen_or_refused_but_never_anything_else(container: str) -> None:
    dice = random.Random(13)  # noqa: S311 - damage that repeats
    exif = Image.Exif()
    exif[0x0112] = 3
    options = {} if container == "GIF" else {"exif": exif}
    valid = file_of(container, **options)
    refused: list[InvalidRequest] = []
    for _ in range(400):
        data = bytearray(valid)
        for _ in range(dice.randint(1, 8)):
            data[dice.randrange(min(len(data), 600))] = dice.randrange(256)
        text = base64.b64encode(data).decode()
        try:
            decode_image(EncodedImage(base64=text, field=FIELD), max_pixels=1_000_000)
        except InvalidRequest as error:
            refused.append(error)
    assert {error.field for error in refused} == {FIELD}


@pytest.mark.parametrize("container", ["PNG", "JPEG", "WEBP", "GIF"])
def test_an_image_that_ends_anywhere_is_seen_or_refused(container: str) -> None:
    valid = file_of(container)
    for length in range(0, len(valid), max(1, len(valid) // 80)):
        text = base64.b64encode(valid[:length]).decode()
        try:
            decode_image(EncodedImage(base64=text, field=FIELD))
        except InvalidRequest as error:
            assert error.field == FIELD  # noqa: PT017 - most lengths are refused, not all
