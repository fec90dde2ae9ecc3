"""Audio of answers and of well-meaning clients, in every format."""

import io
import subprocess
import sys
import wave
from typing import Any

import numpy as np
import pytest
import soundfile

from omnistage_common.errors import EngineFailed, MissingOutput
from omnistage_common.payloads import ElementType, Tensor, TensorHeader
from omnistage_gateway.media.audio import AudioStreamEncoder, decode_audio, encode_audio
from omnistage_gateway.media.formats import AudioFormat, AudioInputFormat, EncodedAudio

Samples = np.ndarray[Any, Any]
COMPRESSED = [AudioFormat.FLAC, AudioFormat.MP3, AudioFormat.OPUS]


def tone(rate_hz: int = 24_000, seconds: float = 0.5) -> Samples:
    """A 440 Hz tone at half of full scale, float32."""
    at = np.arange(int(rate_hz * seconds)) / rate_hz
    return (0.5 * np.sin(2 * np.pi * 440 * at)).astype("<f4")


def as_float(samples: Samples, rate_hz: int = 24_000) -> Tensor:
    header = TensorHeader(element_type=ElementType.FLOAT32, shape=(len(samples),), rate_hz=rate_hz)
    return Tensor(header=header, data=samples.astype("<f4").tobytes())


def as_int16(samples: Samples, rate_hz: int = 24_000) -> Tensor:
    header = TensorHeader(element_type=ElementType.INT16, shape=(len(samples),), rate_hz=rate_hz)
    return Tensor(header=header, data=np.rint(samples * 32_767).astype("<i2").tobytes())


def read(encoded: bytes) -> tuple[Samples, int]:
    samples, rate_hz = soundfile.read(io.BytesIO(encoded), dtype="float32")
    return samples, int(rate_hz)


def pitch(samples: Samples, rate_hz: int) -> float:
    """The loudest frequency, in Hz."""
    return float(np.argmax(np.abs(np.fft.rfft(samples))) * rate_hz / len(samples))


def file_of(samples: Samples, container: str, subtype: str, rate_hz: int = 24_000) -> bytes:
    target = io.BytesIO()
    soundfile.write(target, samples, rate_hz, format=container, subtype=subtype)
    return target.getvalue()


def decode(data: bytes, audio_format: AudioInputFormat) -> Tensor:
    return decode_audio(EncodedAudio(data=data, format=audio_format, field="f"))


def floats(tensor: Tensor) -> Samples:
    assert tensor.header.element_type is ElementType.FLOAT32
    assert tensor.header.length == len(tensor.data)
    return np.frombuffer(tensor.data, dtype="<f4")


@pytest.mark.parametrize(
    ("audio_format", "container", "subtype"),
    [
        (AudioInputFormat.WAV, "WAV", "PCM_16"),
        (AudioInputFormat.WAV, "WAV", "PCM_U8"),
        (AudioInputFormat.WAV, "WAV", "FLOAT"),
        (AudioInputFormat.WAV, "WAVEX", "PCM_24"),
        (AudioInputFormat.WAV, "RF64", "PCM_16"),
        (AudioInputFormat.MP3, "MP3", "MPEG_LAYER_III"),
        (AudioInputFormat.FLAC, "FLAC", "PCM_16"),
        (AudioInputFormat.OGG, "OGG", "VORBIS"),
        (AudioInputFormat.OGG, "OGG", "OPUS"),
        (AudioInputFormat.OPUS, "OGG", "OPUS"),
    ],
)
def test_every_input_format_is_heard_at_its_own_rate(
    audio_format: AudioInputFormat, container: str, subtype: str
) -> None:
    tensor = decode(file_of(tone(), container, subtype), audio_format)
    assert tensor.header.rate_hz == 24_000
    samples = floats(tensor)
    assert len(samples) == pytest.approx(12_000, rel=0.01)
    assert pitch(samples, 24_000) == pytest.approx(440, abs=3)
    assert np.abs(samples).max() == pytest.approx(0.5, abs=0.1)


def test_channels_are_mixed_into_one() -> None:
    stereo = np.stack([np.full(100, 0.5), np.full(100, -0.25)], axis=1)
    tensor = decode(file_of(stereo, "WAV", "FLOAT"), AudioInputFormat.WAV)
    assert tensor.header.shape == (100,)
    assert np.allclose(floats(tensor), 0.125)


def test_a_recording_of_several_blocks_keeps_every_sample() -> None:
    samples = tone(seconds=10)
    tensor = decode(file_of(samples, "WAV", "FLOAT"), AudioInputFormat.WAV)
    assert np.array_equal(floats(tensor), samples)


def test_decoded_samples_are_read_only() -> None:
    tensor = decode(file_of(tone(), "WAV", "PCM_16"), AudioInputFormat.WAV)
    assert memoryview(tensor.data).readonly


@pytest.mark.parametrize("make", [as_float, as_int16])
def test_a_wav_is_what_every_reader_takes_it_for(make: Any) -> None:
    encoded = encode_audio([make(tone()[:5000]), make(tone()[5000:])], AudioFormat.WAV)
    samples, rate_hz = read(encoded)
    assert rate_hz == 24_000
    assert np.allclose(samples, tone(), atol=1e-4)
    with wave.open(io.BytesIO(encoded)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        assert file.getnframes() == 12_000


@pytest.mark.parametrize("make", [as_float, as_int16])
def test_pcm16_is_the_samples_and_nothing_else(make: Any) -> None:
    encoded = encode_audio([make(tone())], AudioFormat.PCM16)
    assert np.allclose(np.frombuffer(encoded, dtype="<i2") / 32_767, tone(), atol=1e-4)


@pytest.mark.parametrize("rate_hz", [7_000, 16_000, 22_050, 24_000, 44_100, 96_000])
@pytest.mark.parametrize("audio_format", COMPRESSED)
def test_compressed_formats_take_every_rate(audio_format: AudioFormat, rate_hz: int) -> None:
    samples, played_hz = read(encode_audio([as_int16(tone(rate_hz), rate_hz)], audio_format))
    assert len(samples) / played_hz == pytest.approx(0.5, rel=0.01)
    assert pitch(samples, played_hz) == pytest.approx(440, abs=3)
    assert np.abs(samples).max() == pytest.approx(0.5, abs=0.12)
    assert audio_format is not AudioFormat.FLAC or played_hz == rate_hz


def test_flac_loses_nothing() -> None:
    piece = as_int16(tone())
    samples, _ = soundfile.read(io.BytesIO(encode_audio([piece], AudioFormat.FLAC)), dtype="int16")
    assert samples.tobytes() == piece.data


def test_floats_beyond_full_scale_are_clipped() -> None:
    encoded = encode_audio([as_float(np.array([2.0, -2.0, 1.0, -1.0]))], AudioFormat.PCM16)
    assert np.frombuffer(encoded, dtype="<i2").tolist() == [32_767, -32_767, 32_767, -32_767]


def test_pieces_may_be_views_of_memory_that_is_used_again() -> None:
    slab = bytearray(np.arange(4, dtype="<i2").tobytes())
    header = TensorHeader(element_type=ElementType.INT16, shape=(4,), rate_hz=24_000)
    piece = Tensor(header=header, data=memoryview(slab).toreadonly())
    encoder = AudioStreamEncoder(AudioFormat.FLAC)
    sent = AudioStreamEncoder(AudioFormat.PCM16).feed(piece)
    assert encoder.feed(piece) == b""
    slab[:] = bytes(8)
    samples, _ = soundfile.read(io.BytesIO(encoder.finish()), dtype="int16")
    assert samples.tolist() == np.frombuffer(sent, dtype="<i2").tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("make", [as_float, as_int16])
def test_a_streamed_wav_plays_to_its_end(make: Any) -> None:
    encoder = AudioStreamEncoder(AudioFormat.WAV)
    pieces = np.array_split(tone(), 7)
    deltas = [encoder.feed(make(piece)) for piece in pieces]
    assert all(deltas)
    encoded = b"".join(deltas) + encoder.finish()
    samples, rate_hz = read(encoded)
    assert rate_hz == 24_000
    assert np.allclose(samples, tone(), atol=1e-4)
    assert len(floats(decode(encoded, AudioInputFormat.WAV))) == 12_000
    with wave.open(io.BytesIO(encoded)) as file:
        assert len(file.readframes(file.getnframes())) == 24_000


def test_streamed_pcm16_passes_as_it_comes() -> None:
    encoder = AudioStreamEncoder(AudioFormat.PCM16)
    piece = as_int16(tone())
    assert [encoder.feed(piece), encoder.feed(piece), encoder.finish()] == [
        piece.data,
        piece.data,
        b"",
    ]


@pytest.mark.parametrize("audio_format", COMPRESSED)
def test_a_compressed_stream_is_one_delta_at_the_end(audio_format: AudioFormat) -> None:
    encoder = AudioStreamEncoder(audio_format)
    pieces = [as_int16(piece) for piece in np.array_split(tone(), 3)]
    assert [encoder.feed(piece) for piece in pieces] == [b"", b"", b""]
    streamed, rate_hz = read(encoder.finish())
    whole, whole_hz = read(encode_audio(pieces, audio_format))
    assert rate_hz == whole_hz
    assert np.array_equal(streamed, whole)


def stereo(rate_hz: int = 24_000) -> Tensor:
    """The tone on the left and its double on the right."""
    samples = np.stack([tone(rate_hz) / 2, tone(rate_hz)], axis=1).astype("<f4")
    header = TensorHeader(element_type=ElementType.FLOAT32, shape=samples.shape, rate_hz=rate_hz)
    return Tensor(header=header, data=samples.tobytes())


@pytest.mark.parametrize("rate_hz", [24_000, 44_100])
@pytest.mark.parametrize("audio_format", [each for each in AudioFormat if each.value != "pcm16"])
def test_every_channel_is_kept(audio_format: AudioFormat, rate_hz: int) -> None:
    samples, played_hz = read(encode_audio([stereo(rate_hz)], audio_format))
    assert samples.shape[1] == 2
    assert len(samples) / played_hz == pytest.approx(0.5, rel=0.01)
    left, right = np.abs(samples).max(axis=0)
    assert (left, right) == (pytest.approx(0.25, abs=0.06), pytest.approx(0.5, abs=0.12))
    assert pitch(samples[:, 0], played_hz) == pytest.approx(440, abs=3)


def test_channels_lie_side_by_side_in_pcm16_and_in_a_streamed_wav() -> None:
    pcm = encode_audio([stereo()], AudioFormat.PCM16)
    encoder = AudioStreamEncoder(AudioFormat.WAV)
    streamed = encoder.feed(stereo()) + encoder.feed(stereo()) + encoder.finish()
    samples, rate_hz = read(streamed)
    left, right = np.frombuffer(pcm, "<i2").reshape(-1, 2).T / 32_767
    assert np.allclose(left, tone() / 2, atol=1e-4)
    assert np.allclose(right, tone(), atol=1e-4)
    assert (samples.shape, rate_hz) == ((24_000, 2), 24_000)
    assert streamed.endswith(pcm)


@pytest.mark.parametrize("audio_format", AudioFormat)
def test_silence_in_place_of_audio_is_an_error(audio_format: AudioFormat) -> None:
    empty = as_int16(np.zeros(0))
    for pieces in ([], [empty]):
        with pytest.raises(MissingOutput):
            encode_audio(pieces, audio_format)
        encoder = AudioStreamEncoder(audio_format)
        assert [encoder.feed(piece) for piece in pieces] == [b""] * len(pieces)
        with pytest.raises(MissingOutput):
            encoder.finish()


def odd(**fields: Any) -> Tensor:
    given = {"element_type": ElementType.INT16, "shape": (2,), "rate_hz": 24_000, **fields}
    header = TensorHeader(**given)
    return Tensor(header=header, data=bytes(header.length))


@pytest.mark.parametrize(
    ("piece", "words"),
    [
        (odd(rate_hz=0), "rate_hz 0"),
        (odd(rate_hz=16_000), "24000 Hz to 16000 Hz"),
        (odd(shape=(2, 2)), "from 1 to 2"),
        (odd(shape=(1, 9)), "at most 8 channels"),
        (odd(shape=(1, 2, 2)), r"\[1, 2, 2\]"),
        (odd(shape=()), r"\[\]"),
        (odd(element_type=ElementType.UINT8), "uint8"),
        (Tensor(header=odd().header, data=b"abc"), "in 3 bytes"),
        (as_float(np.array([np.nan])), "finite"),
        (as_float(np.array([np.inf])), "finite"),
    ],
)
def test_what_is_no_audio_is_the_stages_fault(piece: Tensor, words: str) -> None:
    first = as_int16(tone())
    with pytest.raises(EngineFailed, match=words):
        encode_audio([first, piece], AudioFormat.WAV)
    encoder = AudioStreamEncoder(AudioFormat.WAV)
    encoder.feed(first)
    with pytest.raises(EngineFailed, match=words):
        encoder.feed(piece)


def test_int16_wav_and_pcm_need_neither_numpy_nor_libsndfile() -> None:
    program = """
import sys
from omnistage_common.payloads import ElementType, Tensor, TensorHeader
from omnistage_gateway.media.audio import AudioStreamEncoder, encode_audio
from omnistage_gateway.media.formats import AudioFormat
header = TensorHeader(element_type=ElementType.INT16, shape=(2,), rate_hz=8000)
piece = Tensor(header=header, data=bytes(4))
for audio_format in (AudioFormat.WAV, AudioFormat.PCM16):
    encode_audio([piece], audio_format)
    AudioStreamEncoder(audio_format).feed(piece)
sys.exit(len({"numpy", "soundfile"} & sys.modules.keys()))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
