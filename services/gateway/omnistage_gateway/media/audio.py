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
from omnistage_gateway.media.formats import AudioFormat, EncodedAudio

__all__ = [
    "MAX_SECONDS",
    "AudioStreamEncoder",
    "decode_audio",
    "encode_audio",
    "prepare_decoding",
]

MAX_SECONDS: Final = 600.0
"""Longest audio input that is decoded when the caller sets no limit of its own."""

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
        pieces: int16 or float32 `[samples]` each, all of one rate, in order. Float samples beyond
            -1..1 are clipped. For `opus` and `mp3`, a rate that the format does not have is
            resampled to the next one that it has.
        audio_format: The format.

    Raises:
        MissingOutput: There is not a single sample.
        EngineFailed: A piece is not audio, or the pieces differ in rate.
        MissingDependency: numpy or soundfile is not installed and the format needs it.
    """
    samples = b"".join([_pcm16(piece) for piece in pieces])
    if not samples:
        raise MissingOutput("the stage ended without a sample of audio")
    rate_hz = pieces[0].header.rate_hz
    for piece in pieces:
        _check_rate(piece, rate_hz)
    return _packed(samples, rate_hz, audio_format)


class AudioStreamEncoder:
    """Encodes an answer's audio piece by piece.

    The concatenation of all that `feed` and `finish` return is one file of the format. A streamed
    WAV has the unknown length 0xFFFFFFFF in its header, since the header leaves before the last
    sample is made; players and libsndfile read such a file to its end. `flac`, `mp3` and `opus`
    are compressed at the end, in one piece.
    """

    def __init__(self, audio_format: AudioFormat) -> None:
        self._format = audio_format
        self._rate_hz = 0
        self._held: list[bytes] = []
        self._started = False

    def feed(self, piece: Tensor) -> bytes:
        """What to send now that this piece was made; may be empty. The piece's buffer is copied.

        Args:
            piece: int16 or float32 `[samples]`.

        Raises:
            EngineFailed: The piece is not audio, or its rate differs from the first one's.
            MissingDependency: numpy is not installed and the samples are floats.
        """
        samples = _pcm16(piece)
        if not samples:
            return b""
        if not self._started:
            self._started = True
            self._rate_hz = piece.header.rate_hz
            _check_rate(piece, self._rate_hz)
            if self._format is AudioFormat.WAV:
                return _wav_header(self._rate_hz, _UNKNOWN_LENGTH) + samples
        else:
            _check_rate(piece, self._rate_hz)
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
        if not self._started:
            raise MissingOutput("the stage ended without a sample of audio")
        if self._format.streams:
            return b""
        samples = b"".join(self._held)
        self._held.clear()
        return _packed(samples, self._rate_hz, self._format)


def _pcm16(piece: Tensor) -> bytes | memoryview:
    header = piece.header
    if len(header.shape) != 1 or header.length != len(piece.data):
        raise EngineFailed(
            f"audio must be samples of shape [n]; the stage made {list(header.shape)} "
            f"in {len(piece.data)} bytes"
        )
    if header.element_type is ElementType.INT16:
        return piece.data
    if header.element_type is ElementType.FLOAT32:
        samples: bytes = _codec().float_to_pcm16(piece.data)
        return samples
    raise EngineFailed(
        f"audio must be int16 or float32; the stage made {header.element_type.value}"
    )


def _check_rate(piece: Tensor, rate_hz: int) -> None:
    if piece.header.rate_hz <= 0:
        raise EngineFailed("audio must have a rate; the stage made samples with rate_hz 0")
    if piece.header.rate_hz != rate_hz:
        raise EngineFailed(
            f"audio must keep its rate; the stage went from {rate_hz} Hz "
            f"to {piece.header.rate_hz} Hz"
        )


def _packed(samples: bytes, rate_hz: int, audio_format: AudioFormat) -> bytes:
    if audio_format is AudioFormat.PCM16:
        return samples
    if audio_format is AudioFormat.WAV:
        return _wav_header(rate_hz, len(samples)) + samples
    packed: bytes = _codec().compress(samples, rate_hz, audio_format)
    return packed


def _wav_header(rate_hz: int, length: int) -> bytes:
    """The 44 bytes before mono 16-bit samples.

    Args:
        rate_hz: Samples per second.
        length: Bytes of samples; `_UNKNOWN_LENGTH` when they are still to come.
    """
    return struct.pack(
        "<4sI8sIHHIIHH4sI",
        b"RIFF",
        min(length + 36, _UNKNOWN_LENGTH),
        b"WAVEfmt ",
        16,
        1,
        1,
        rate_hz,
        rate_hz * 2,
        2,
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
