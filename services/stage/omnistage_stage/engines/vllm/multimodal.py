"""Recordings and pictures of a request, as a model's processor takes them.

What a gateway decodes and what another stage makes arrive in the same form. Anything a client can
get wrong about a recording or a picture is found here and named; a wrong element type or shape is
the pipeline's own mistake.
"""

from typing import Any, Final

import numpy as np

from omnistage_common.errors import EngineFailed, InvalidRequest
from omnistage_common.payloads import ElementType, Tensor

__all__ = ["Samples", "picture", "waveform"]

Samples = np.ndarray[Any, np.dtype[np.float32]]
"""Mono samples from -1 to 1."""

_FULL_SCALE: Final = {ElementType.INT16: 32768.0, ElementType.FLOAT32: 1.0}
_RATES: Final = range(4_000, 384_001)
_SHORTEST_S: Final = 0.025
"""One window of a spectrogram; of less, no features can be made."""
_COLOURS: Final = 3


def waveform(tensor: Tensor, index: int, rate_hz: int) -> Samples:
    """The samples of a recording, mono, at the rate that the model hears.

    Args:
        tensor: float32 or int16 `[samples]` or `[samples, channels]`, with its rate. Channels are
            averaged.
        index: Which audio input of the request it is.
        rate_hz: The model's rate; another one is resampled by soxr at high quality.

    Raises:
        InvalidRequest: It is too short, or has a sample that is no number.
        EngineFailed: It is not a recording.
    """
    header = tensor.header
    scale = _FULL_SCALE.get(header.element_type)
    if scale is None or len(header.shape) not in (1, 2) or header.rate_hz not in _RATES:
        raise EngineFailed(
            f"audio input {index} is {header.element_type.value} {list(header.shape)} at "
            f"{header.rate_hz} Hz; the model takes float32 or int16 samples, or samples by "
            "channels, with their rate"
        )
    if header.shape[0] < _SHORTEST_S * header.rate_hz or 0 in header.shape:
        raise InvalidRequest(
            f"audio input {index} has {header.shape[0]} samples at {header.rate_hz} Hz; the model "
            f"hears nothing in less than {_SHORTEST_S * 1000:g} ms",
            field="messages",
        )
    samples = np.frombuffer(tensor.data, header.element_type.value).reshape(header.shape)
    mono = samples.astype(np.float32) if samples.ndim == 1 else samples.mean(1, dtype=np.float32)
    if not np.isfinite(mono).all():
        raise InvalidRequest(
            f"audio input {index} has samples that are not numbers", field="messages"
        )
    mono /= scale
    if header.rate_hz != rate_hz:
        import soxr  # noqa: PLC0415

        mono = soxr.resample(mono, header.rate_hz, rate_hz)
    return mono


def picture(tensor: Tensor, index: int) -> Any:
    """A picture as an image of Pillow.

    Args:
        tensor: uint8 `[height, width, 3]`.
        index: Which image input of the request it is.

    Raises:
        InvalidRequest: There is no pixel in it.
        EngineFailed: It is not a picture.
    """
    from PIL import Image  # noqa: PLC0415

    header = tensor.header
    if (
        header.element_type is not ElementType.UINT8
        or len(header.shape) != _COLOURS
        or header.shape[2] != _COLOURS
    ):
        raise EngineFailed(
            f"image input {index} is {header.element_type.value} {list(header.shape)}; "
            "the model takes uint8 [height, width, 3]"
        )
    if 0 in header.shape:
        raise InvalidRequest(f"image input {index} is empty", field="messages")
    return Image.fromarray(np.frombuffer(tensor.data, np.uint8).reshape(header.shape))
