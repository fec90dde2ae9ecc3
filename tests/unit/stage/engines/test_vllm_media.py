"""Recordings and pictures in the form that a model's processor takes them."""

from typing import Any

import numpy as np
import pytest
import soxr

from omnistage_common.errors import EngineFailed, InvalidRequest
from omnistage_common.payloads import ElementType, Tensor, TensorHeader
from omnistage_stage.engines.vllm.multimodal import picture, waveform

RATE_HZ = 16_000
TONE = np.sin(np.arange(4_800) / 10).astype(np.float32)


def tensor(array: Any, rate_hz: int = 0) -> Tensor:
    header = TensorHeader(
        element_type=ElementType(array.dtype.name), shape=array.shape, rate_hz=rate_hz
    )
    return Tensor(header=header, data=memoryview(array.tobytes()).toreadonly())


def test_samples_at_the_models_rate_stay_as_they_are() -> None:
    heard = waveform(tensor(TONE, RATE_HZ), 0, RATE_HZ)

    assert np.array_equal(heard, TONE)
    assert heard.flags.writeable


def test_integers_become_parts_of_full_scale() -> None:
    heard = waveform(tensor(np.full(400, -16_384, np.int16), RATE_HZ), 0, RATE_HZ)

    assert heard.dtype == np.float32
    assert np.array_equal(heard, np.full(400, -0.5, np.float32))


def test_channels_are_averaged() -> None:
    stereo = np.stack([TONE, -TONE / 2], axis=1)

    assert np.allclose(waveform(tensor(stereo, RATE_HZ), 0, RATE_HZ), TONE / 4)


def test_another_rate_is_resampled_at_high_quality() -> None:
    heard = waveform(tensor(TONE, 48_000), 0, RATE_HZ)

    assert np.array_equal(heard, soxr.resample(TONE, 48_000, RATE_HZ))
    assert len(heard) == len(TONE) // 3


@pytest.mark.parametrize("samples", [0, 1, 1_199])
def test_a_recording_in_which_nothing_can_be_heard_is_refused(samples: int) -> None:
    with pytest.raises(InvalidRequest, match=f"audio input 3 has {samples} samples") as refused:
        waveform(tensor(TONE[:samples], 48_000), 3, RATE_HZ)

    assert refused.value.field == "messages"


def test_samples_that_are_no_numbers_are_refused() -> None:
    broken = np.array([0.0] * 500 + [np.nan], np.float32)

    with pytest.raises(InvalidRequest, match="audio input 1 has samples that are not numbers"):
        waveform(tensor(broken, RATE_HZ), 1, RATE_HZ)


@pytest.mark.parametrize(
    ("array", "rate_hz"),
    [(TONE, 0), (TONE.astype(np.uint8), RATE_HZ), (TONE.reshape(10, 10, 48), RATE_HZ)],
    ids=["no rate", "bytes", "three dimensions"],
)
def test_what_is_no_recording_is_the_pipelines_mistake(array: Any, rate_hz: int) -> None:
    with pytest.raises(EngineFailed, match="audio input 2 is"):
        waveform(tensor(array, rate_hz), 2, RATE_HZ)


def test_a_picture_keeps_its_pixels() -> None:
    pixels = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    image = picture(tensor(pixels), 0)

    assert image.size == (7, 5)
    assert image.mode == "RGB"
    assert np.array_equal(np.asarray(image), pixels)


def test_a_picture_without_pixels_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="image input 4 is empty") as refused:
        picture(tensor(np.zeros((0, 7, 3), np.uint8)), 4)

    assert refused.value.field == "messages"


@pytest.mark.parametrize(
    "array", [np.zeros((5, 7), np.uint8), np.zeros((5, 7, 4), np.uint8), np.zeros((5, 7, 3))]
)
def test_what_is_no_picture_is_the_pipelines_mistake(array: Any) -> None:
    with pytest.raises(EngineFailed, match="image input 1 is"):
        picture(tensor(array.astype(np.float32) if array.dtype == np.float64 else array), 1)
