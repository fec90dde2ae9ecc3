"""What audio can be encoded as, by its names in requests; and an input that nobody looked into yet."""

from enum import Enum

from msgspec import Struct

__all__ = ["AudioFormat", "AudioInputFormat", "EncodedAudio"]


class AudioFormat(Enum):
    """What an answer's audio can be encoded as; the value is its name in a request."""

    WAV = "wav"
    """16-bit samples with a header."""
    PCM16 = "pcm16"
    """16-bit little-endian samples, nothing else."""
    FLAC = "flac"
    MP3 = "mp3"
    OPUS = "opus"
    """Opus in an Ogg container."""

    @property
    def streams(self) -> bool:
        """Whether pieces can be sent as they are made; the others are compressed at the end."""
        return self in {AudioFormat.WAV, AudioFormat.PCM16}


class AudioInputFormat(Enum):
    """What a request's audio can be encoded as; the value is its name in a request."""

    WAV = "wav"
    MP3 = "mp3"
    FLAC = "flac"
    OGG = "ogg"
    """An Ogg container with Vorbis or Opus."""
    OPUS = "opus"
    """Opus in an Ogg container."""


class EncodedAudio(Struct, frozen=True, kw_only=True):
    """An audio input as the client sent it, not looked into yet."""

    data: bytes
    format: AudioInputFormat
    """What the client says it is."""
    field: str
    """Where it stands in the request, e.g. `messages[0].content[1].input_audio`."""
