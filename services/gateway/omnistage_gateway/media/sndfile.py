"""The numpy and libsndfile half of `omnistage_gateway.media.audio`; imported there, on first use.

What a client sends is hostile until shown otherwise: a header's claims (4 GB of samples, a thousand
channels, two billion samples per second) are checked before memory follows them, and samples are
read block by block, so that what is held never exceeds the limit on length.
"""

import io
from typing import Any, Final

import numpy as np
import soundfile

from omnistage_common.errors import EngineFailed, InvalidRequest, truncated
from omnistage_common.payloads import ElementType, Tensor, TensorHeader
from omnistage_gateway.media.formats import AudioFormat, AudioInputFormat, EncodedAudio, Sound

__all__ = ["compress", "decode", "float_to_pcm16"]

_Samples = np.ndarray[Any, Any]

_BLOCK_FRAMES: Final = 65_536
_MAX_CHANNELS: Final = 8
_MAX_SAMPLES: Final = 32_000_000
"""Samples that one input may decode to, whatever its rate: 122 MiB. A minute of compressed silence
is a few kilobytes, so the limit on the body does not bound this."""
_MIN_RATE_HZ: Final = 1_000
_MAX_RATE_HZ: Final = 192_000
_SILENCE: Final = 0.05
"""Seconds added around a signal before it is resampled, so that its end does not ring into its
beginning."""

_CONTAINERS: Final = {
    AudioInputFormat.WAV: ("WAV", "WAVEX", "RF64"),
    AudioInputFormat.MP3: ("MP3", "MPEG"),
    AudioInputFormat.FLAC: ("FLAC",),
    AudioInputFormat.OGG: ("OGG",),
    AudioInputFormat.OPUS: ("OGG",),
}
"""What libsndfile calls each format."""

_TARGETS: Final = {
    AudioFormat.FLAC: ("FLAC", "PCM_16"),
    AudioFormat.MP3: ("MP3", "MPEG_LAYER_III"),
    AudioFormat.OPUS: ("OGG", "OPUS"),
}

_RATES_HZ: Final = {
    AudioFormat.MP3: (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000),
    AudioFormat.OPUS: (8_000, 12_000, 16_000, 24_000, 48_000),
}
"""The only rates that these formats have."""


def decode(encoded: EncodedAudio, max_seconds: float) -> Tensor:
    """See `omnistage_gateway.media.audio.decode_audio`."""
    where = f"{encoded.field}.data"
    if not encoded.data:
        raise InvalidRequest(f"`{where}` is empty; send the audio as base64", field=where)
    try:
        with soundfile.SoundFile(io.BytesIO(encoded.data)) as file:
            _check_header(file, encoded)
            samples = _mono(file, encoded, max_seconds)
            rate_hz = int(file.samplerate)
    except soundfile.SoundFileRuntimeError as error:
        raise InvalidRequest(
            f"`{where}` is not readable as {encoded.format.value}: {_reason(error)}", field=where
        ) from error
    return Tensor(
        header=TensorHeader(
            element_type=ElementType.FLOAT32, shape=(len(samples) // 4,), rate_hz=rate_hz
        ),
        data=memoryview(samples).toreadonly(),
    )


def float_to_pcm16(data: bytes | memoryview) -> bytes:
    """float32 samples as 16-bit ones, clipped to -1..1.

    Raises:
        EngineFailed: A sample is not a number or infinite.
    """
    samples = np.frombuffer(data, dtype="<f4")
    if not np.isfinite(samples).all():
        raise EngineFailed("the stage made audio samples that are not finite numbers")
    scaled: _Samples = np.rint(np.clip(samples, -1.0, 1.0) * 32_767)
    return scaled.astype("<i2").tobytes()


def compress(samples: bytes, sound: Sound, audio_format: AudioFormat) -> bytes:
    """16-bit samples as a compressed file.

    Raises:
        EngineFailed: libsndfile refuses them, e.g. for their rate.
    """
    container, subtype = _TARGETS[audio_format]
    pcm = np.frombuffer(samples, dtype="<i2").reshape(-1, sound.channels)
    rate_hz = sound.rate_hz
    rates = _RATES_HZ.get(audio_format)
    if rates is not None and rate_hz not in rates:
        target_hz = next((rate for rate in rates if rate > rate_hz), rates[-1])
        pcm = _resampled(pcm, rate_hz, target_hz)
        rate_hz = target_hz
    # Two channels of 16 bits come out of libsndfile's MP3 encoder as noise; of 32 bits, as they are.
    pcm = pcm.astype("<i4") << 16
    target = io.BytesIO()
    try:
        soundfile.write(target, pcm, rate_hz, format=container, subtype=subtype)
    except soundfile.SoundFileRuntimeError as error:
        raise EngineFailed(
            f"{len(pcm)} samples of {sound.channels} channels at {rate_hz} Hz cannot be encoded as"
            f" {audio_format.value}: {_reason(error)}"
        ) from error
    return target.getvalue()


def _reason(error: Exception) -> str:
    """What libsndfile says, without the address of the buffer that soundfile puts before it."""
    return truncated(str(getattr(error, "error_string", error)))


def _check_header(file: Any, encoded: EncodedAudio) -> None:
    matches = file.format in _CONTAINERS[encoded.format] and (
        encoded.format is not AudioInputFormat.OPUS or file.subtype == "OPUS"
    )
    if not matches:
        where = f"{encoded.field}.format"
        raise InvalidRequest(
            f"`{where}` says {encoded.format.value}, but the data is {file.format} "
            f"({file.subtype}); declare what it is",
            field=where,
        )
    if file.channels > _MAX_CHANNELS or not _MIN_RATE_HZ <= file.samplerate <= _MAX_RATE_HZ:
        where = f"{encoded.field}.data"
        raise InvalidRequest(
            f"`{where}` has {file.channels} channels at {file.samplerate} Hz; at most "
            f"{_MAX_CHANNELS} channels and {_MIN_RATE_HZ} to {_MAX_RATE_HZ} Hz are taken",
            field=where,
        )


def _mono(file: Any, encoded: EncodedAudio, max_seconds: float) -> bytearray:
    """All samples, channels mixed, as float32."""
    where = f"{encoded.field}.data"
    limit = min(int(max_seconds * file.samplerate), _MAX_SAMPLES)
    samples = bytearray()
    count = 0
    while len(block := file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)):
        count += len(block)
        if count > limit:
            raise InvalidRequest(
                f"`{where}` is longer than {limit / file.samplerate:g} s, the most at "
                f"{file.samplerate} Hz; send a shorter recording",
                field=where,
            )
        if not np.isfinite(block).all():
            raise InvalidRequest(
                f"`{where}` holds samples that are not finite numbers", field=where
            )
        mixed = block.mean(axis=1, dtype=np.float64) if file.channels > 1 else block
        samples += mixed.astype("<f4").tobytes()
    if count == 0:
        raise InvalidRequest(
            f"`{where}` holds no samples; send a recording with sound in it", field=where
        )
    return samples


def _resampled(samples: _Samples, rate_hz: int, target_hz: int) -> _Samples:
    """`[samples, channels]` at another rate; band-limited, by the spectrum of the whole signal."""
    margin = int(_SILENCE * rate_hz)
    padded = np.pad(samples.astype(np.float64), ((margin, margin), (0, 0)))
    length = round(len(padded) * target_hz / rate_hz)
    moved = np.fft.irfft(np.fft.rfft(padded, axis=0), length, axis=0) * (length / len(padded))
    first = round(margin * target_hz / rate_hz)
    count = max(1, round(len(samples) * target_hz / rate_hz))
    return np.rint(np.clip(moved[first : first + count], -32_768, 32_767)).astype("<i2")
