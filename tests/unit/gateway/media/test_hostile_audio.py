"""Audio that is not what it claims to be: refused by its field, in bounded memory."""

import io
import random
import struct
import tracemalloc

import numpy as np
import pytest
import soundfile

from omnistage_common.errors import InvalidRequest
from omnistage_gateway.media import sndfile
from omnistage_gateway.media.audio import MAX_SECONDS, decode_audio
from omnistage_gateway.media.formats import AudioInputFormat, EncodedAudio

FIELD = "messages[0].content[1].input_audio"
CHANNELS, RATE, RIFF_SIZE, DATA_SIZE = 22, 24, 4, 40
"""Offsets in the header of a plain WAV."""


def recording(container: str = "WAV", subtype: str = "PCM_16", seconds: float = 0.5) -> bytes:
    target = io.BytesIO()
    samples = np.sin(np.arange(int(16_000 * seconds)) / 6).astype("float32") / 2
    soundfile.write(target, samples, 16_000, format=container, subtype=subtype)
    return target.getvalue()


def patched(offset: int, form: str, value: int) -> bytes:
    data = bytearray(recording())
    struct.pack_into(form, data, offset, value)
    return bytes(data)


def float_wav(*values: float) -> bytes:
    target = io.BytesIO()
    soundfile.write(target, np.array(values, dtype="<f4"), 16_000, format="WAV", subtype="FLOAT")
    return target.getvalue()


def refusal(
    data: bytes, audio_format: AudioInputFormat, max_seconds: float = MAX_SECONDS
) -> InvalidRequest:
    encoded = EncodedAudio(data=data, format=audio_format, field=FIELD)
    with pytest.raises(InvalidRequest) as caught:
        decode_audio(encoded, max_seconds=max_seconds)
    return caught.value


WAV, MP3, FLAC, OGG, OPUS = (
    AudioInputFormat.WAV,
    AudioInputFormat.MP3,
    AudioInputFormat.FLAC,
    AudioInputFormat.OGG,
    AudioInputFormat.OPUS,
)


@pytest.mark.parametrize(
    ("data", "audio_format", "words"),
    [
        (b"", WAV, "is empty"),
        (b"garbage" * 100, WAV, "not readable as wav"),
        (b"garbage" * 100, OPUS, "not readable as opus"),
        (recording()[:3], WAV, "not readable"),
        (recording()[:30], WAV, "not readable"),
        (recording()[:44], WAV, "no samples"),
        (recording("FLAC")[:-200], FLAC, "not readable"),
        (recording("OGG", "OPUS")[:60], OGG, "not readable"),
        (float_wav(0.0, float("nan")), WAV, "not finite"),
        (float_wav(0.0, float("inf")), WAV, "not finite"),
        (patched(RATE, "<I", 0), WAV, "not readable"),
        (patched(RATE, "<I", 0x7FFFFFFF), WAV, "2147483647 Hz"),
        (patched(RATE, "<I", 1), WAV, "1 Hz"),
        (patched(CHANNELS, "<H", 1_000), WAV, "1000 channels"),
    ],
)
def test_broken_data_is_refused_as_the_data(
    data: bytes, audio_format: AudioInputFormat, words: str
) -> None:
    error = refusal(data, audio_format)
    assert error.field == f"{FIELD}.data"
    assert words in error.message
    assert "0x" not in error.message


@pytest.mark.parametrize(
    ("data", "declared", "words"),
    [
        (recording("FLAC"), WAV, "says wav, but the data is FLAC"),
        (recording(), MP3, "says mp3, but the data is WAV"),
        (recording("AIFF"), WAV, "but the data is AIFF"),
        (recording("OGG", "VORBIS"), OPUS, "but the data is OGG (VORBIS)"),
        (recording("MP3", "MPEG_LAYER_III"), FLAC, "says flac, but the data is MP3"),
    ],
)
def test_another_format_than_declared_is_refused_as_the_format(
    data: bytes, declared: AudioInputFormat, words: str
) -> None:
    error = refusal(data, declared)
    assert error.field == f"{FIELD}.format"
    assert words in error.message


@pytest.mark.parametrize(
    ("container", "subtype", "audio_format"),
    [
        ("WAV", "PCM_16", WAV),
        ("MP3", "MPEG_LAYER_III", MP3),
        ("FLAC", "PCM_16", FLAC),
        ("OGG", "OPUS", OPUS),
    ],
)
def test_a_recording_over_the_limit_is_refused(
    container: str, subtype: str, audio_format: AudioInputFormat
) -> None:
    data = recording(container, subtype, seconds=3)
    error = refusal(data, audio_format, max_seconds=2)
    assert error.field == f"{FIELD}.data"
    assert "longer than 2 s" in error.message
    decode_audio(EncodedAudio(data=data, format=audio_format, field=FIELD), max_seconds=3.2)


@pytest.mark.parametrize("claimed", [0xFFFFFFFF, 0xFFFFFFF0, 0x7FFFFFFF])
def test_a_header_that_claims_gigabytes_gets_what_is_there(claimed: int) -> None:
    data = bytearray(patched(DATA_SIZE, "<I", claimed))
    struct.pack_into("<I", data, RIFF_SIZE, claimed)
    tracemalloc.start()
    try:
        tensor = decode_audio(EncodedAudio(data=bytes(data), format=WAV, field=FIELD))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tensor.header.shape == (8_000,)
    assert peak < 4 * 2**20


def test_what_a_small_file_unfolds_to_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    target = io.BytesIO()
    soundfile.write(target, np.zeros(2_000_000, "<i2"), 192_000, format="FLAC", subtype="PCM_16")
    assert len(target.getvalue()) < 50_000
    monkeypatch.setattr(sndfile, "_MAX_SAMPLES", 960_000)
    error = refusal(target.getvalue(), FLAC)
    assert "longer than 5 s, the most at 192000 Hz" in error.message


def test_huge_but_finite_samples_are_mixed_without_overflow() -> None:
    target = io.BytesIO()
    loud = np.full((10, 2), 3.0e38, dtype="<f4")
    soundfile.write(target, loud, 16_000, format="WAV", subtype="FLOAT")
    tensor = decode_audio(EncodedAudio(data=target.getvalue(), format=WAV, field=FIELD))
    assert np.isfinite(np.frombuffer(tensor.data, dtype="<f4")).all()


@pytest.mark.parametrize(
    ("container", "subtype", "audio_format"),
    [
        ("WAV", "PCM_16", WAV),
        ("WAV", "FLOAT", WAV),
        ("FLAC", "PCM_16", FLAC),
        ("OGG", "OPUS", OGG),
        ("OGG", "VORBIS", OGG),
    ],
)
def test_random_damage_is_heard_or_refused_but_never_anything_else(
    container: str, subtype: str, audio_format: AudioInputFormat
) -> None:
    dice = random.Random(11)  # noqa: S311 - damage that repeats
    valid = recording(container, subtype, seconds=0.1)
    refused: list[InvalidRequest] = []
    for _ in range(150):
        data = bytearray(valid)
        for _ in range(dice.randint(1, 8)):
            data[dice.randrange(min(len(data), 400))] = dice.randrange(256)
        encoded = EncodedAudio(data=bytes(data), format=audio_format, field=FIELD)
        try:
            decode_audio(encoded)
        except InvalidRequest as error:
            refused.append(error)
    assert {error.field for error in refused} <= {f"{FIELD}.data", f"{FIELD}.format"}
    assert refused
