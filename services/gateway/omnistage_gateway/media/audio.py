"""Audio as clients send and receive it, to and from the tensors that stages exchange.

Two invariants: what a client sent is checked before anything is computed with it (format, length,
finite samples), and what a stage made is never answered with silence in its place: no samples is an
error. WAV and raw PCM of 16-bit samples are put together from bytes alone; every other format needs
numpy and libsndfile, which are imported on their first use, or when a gateway starts whose pipelines
take recordings, so that one that never meets them stays small. Nothing here knows HTTP or OpenAI's
shapes. All of it computes in the caller's thread: decoding and compressing take milliseconds per
minute of audio, so an event loop hands them to a worker thread.
"""

import struct
from collections.abc import Sequence
from types import ModuleType
from typing import Final

from omnistage_common.errors import EngineFailed, MissingDependency, MissingOutput
from omnistage_common.payloads import ElementType, Tensor
from omnistage_gateway.media.formats import AudioFormat, EncodedAudio, Sound

__all__ = [
    "MAX_CHANNELS",
    "MAX_SECONDS",
    "AudioStreamEncoder",
    "decode_audio",
    "encode_audio",
    "prepare_decoding",
]

MAX_SECONDS: Final = 600.0
"""Longest audio input that is decoded when the caller sets no limit of its own."""

MAX_CHANNELS: Final = 8
"""Of an answer's audio."""

_UNKNOWN_LENGTH: Final = 0xFFFFFFFF
"""In a WAV header: read on to the end of the data."""


def decode_audio(encoded: EncodedAudio, *, max_seconds: float = MAX_SECONDS) -> Tensor:
    """The samples of an audio input.

    Args:
        encoded: What the client sent.
        max_seconds: Longer audio is refused; what is decoded stays within it.

    Returns:
        float32 `[samples]`, all channels mixed into one, at the input's own rate.

    Raises:
        InvalidRequest: Malformed, empty, too long, or not of the declared format; names
            `<field>.data` or `<field>.format`.
        MissingDependency: numpy or soundfile is not installed.
    """
    tensor: Tensor = _codec().decode(encoded, max_seconds)
    return tensor


def encode_audio(pieces: Sequence[Tensor], audio_format: AudioFormat) -> bytes:
    """An answer's audio in the format that the client asked for.

    Args:
        pieces: int16 or float32 `[samples]` or `[samples, channels]` each, all of one rate and one
            number of channels, in order. Float samples beyond -1..1 are clipped. For `opus` and
            `mp3`, a rate that the format does not have is resampled to the next one that it has.
        audio_format: The format.

    Raises:
        MissingOutput: There is not a single sample.
        EngineFailed: A piece is not audio, or the pieces differ in rate or channels.
        MissingDependency: numpy or soundfile is not installed and the format needs it.
    """
    samples = b"".join([_pcm16(piece) for piece in pieces])
    if not samples:
        raise MissingOutput("the stage ended without a sample of audio")
    sound = _sound_of(pieces[0])
    for piece in pieces:
        _check_same(piece, sound)
    return _packed(samples, sound, audio_format)


class AudioStreamEncoder:
    """Encodes an answer's audio piece by piece.

    The concatenation of all that `feed` and `finish` return is one file of the format. A streamed
    WAV has the unknown length 0xFFFFFFFF in its header, since the header leaves before the last
    sample is made; players and libsndfile read such a file to its end. `flac`, `mp3` and `opus`
    are compressed at the end, in one piece.
    """

    def __init__(self, audio_format: AudioFormat) -> None:
        self._format = audio_format
        self._sound: Sound | None = None
        """As the first piece is; None until there is one."""
        self._held: list[bytes] = []

    def feed(self, piece: Tensor) -> bytes:
        """What to send now that this piece was made; may be empty. The piece's buffer is copied.

        Args:
            piece: int16 or float32 `[samples]` or `[samples, channels]`.

        Raises:
            EngineFailed: The piece is not audio, or its rate or its number of channels differs
                from the first one's.
            MissingDependency: numpy is not installed and the samples are floats.
        """
        samples = _pcm16(piece)
        if not samples:
            return b""
        if self._sound is None:
            self._sound = _sound_of(piece)
            if self._format is AudioFormat.WAV:
                return _wav_header(self._sound, _UNKNOWN_LENGTH) + samples
        else:
            _check_same(piece, self._sound)
        if self._format.streams:
            return bytes(samples)
        self._held.append(bytes(samples))
        return b""

    def finish(self) -> bytes:
        """What to send after the last piece; may be empty.

        Raises:
            MissingOutput: There was not a single sample.
            MissingDependency: soundfile is not installed and the format needs it.
        """
        if self._sound is None:
            raise MissingOutput("the stage ended without a sample of audio")
        if self._format.streams:
            return b""
        samples = b"".join(self._held)
        self._held.clear()
        return _packed(samples, self._sound, self._format)


def _pcm16(piece: Tensor) -> bytes | memoryview:
    header = piece.header
    if not 1 <= len(header.shape) <= 2 or header.length != len(piece.data):  # noqa: PLR2004
        raise EngineFailed(
            "audio must be samples of shape [n] or [n, channels]; the stage made "
            f"{list(header.shape)} in {len(piece.data)} bytes"
        )
    if header.element_type is ElementType.INT16:
        return piece.data
    if header.element_type is ElementType.FLOAT32:
        samples: bytes = _codec().float_to_pcm16(piece.data)
        return samples
    raise EngineFailed(
        f"audio must be int16 or float32; the stage made {header.element_type.value}"
    )


def _sound_of(piece: Tensor) -> Sound:
    header = piece.header
    if header.rate_hz <= 0:
        raise EngineFailed("audio must have a rate; the stage made samples with rate_hz 0")
    channels = header.shape[1] if len(header.shape) > 1 else 1
    if channels > MAX_CHANNELS:
        raise EngineFailed(
            f"audio must have at most {MAX_CHANNELS} channels; the stage made {channels}"
        )
    return Sound(rate_hz=header.rate_hz, channels=channels)


def _check_same(piece: Tensor, sound: Sound) -> None:
    found = _sound_of(piece)
    if found.rate_hz != sound.rate_hz:
        raise EngineFailed(
            f"audio must keep its rate; the stage went from {sound.rate_hz} Hz "
            f"to {found.rate_hz} Hz"
        )
    if found.channels != sound.channels:
        raise EngineFailed(
            f"audio must keep its channels; the stage went from {sound.channels} "
            f"to {found.channels}"
        )


def _packed(samples: bytes, sound: Sound, audio_format: AudioFormat) -> bytes:
    if audio_format is AudioFormat.PCM16:
        return samples
    if audio_format is AudioFormat.WAV:
        return _wav_header(sound, len(samples)) + samples
    packed: bytes = _codec().compress(samples, sound, audio_format)
    return packed


def _wav_header(sound: Sound, length: int) -> bytes:
    """The 44 bytes before 16-bit samples.

    Args:
        sound: What the samples are.
        length: Bytes of samples; `_UNKNOWN_LENGTH` when they are still to come.
    """
    frame_bytes = 2 * sound.channels
    return struct.pack(
        "<4sI8sIHHIIHH4sI",
        b"RIFF",
        min(length + 36, _UNKNOWN_LENGTH),
        b"WAVEfmt ",
        16,
        1,
        sound.channels,
        sound.rate_hz,
        sound.rate_hz * frame_bytes,
        frame_bytes,
        16,
        b"data",
        length,
    )


def prepare_decoding() -> None:
    """Imports what decoding needs, so that the first recording does not wait for it.

    Raises:
        MissingDependency: numpy or soundfile is not installed.
    """
    _codec()


def _codec() -> ModuleType:
    try:
        # Imported on first use: numpy and libsndfile cost 25 MB that most gateways never need.
        from omnistage_gateway.media import sndfile  # noqa: PLC0415
    except (ImportError, OSError) as error:
        raise MissingDependency(
            f"this audio needs numpy and soundfile ({error}); install `omnistage[gateway]`"
        ) from error
    return sndfile
