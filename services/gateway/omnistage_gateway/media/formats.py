"""What media can be encoded as, by its names in requests; and inputs that nobody looked into yet."""

from enum import Enum
from typing import Final

from msgspec import Struct

__all__ = [
    "AudioFormat",
    "AudioInputFormat",
    "EncodedAudio",
    "EncodedImage",
    "ImageFormat",
    "Sound",
]


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

    @property
    def media_type(self) -> str:
        """What HTTP calls it."""
        return _AUDIO_TYPES[self]


_AUDIO_TYPES: Final = {
    AudioFormat.WAV: "audio/wav",
    AudioFormat.PCM16: "audio/pcm",
    AudioFormat.FLAC: "audio/flac",
    AudioFormat.MP3: "audio/mpeg",
    AudioFormat.OPUS: "audio/ogg",
}


class AudioInputFormat(Enum):
    """What a request's audio can be encoded as; the value is its name in a request."""

    WAV = "wav"
    MP3 = "mp3"
    FLAC = "flac"
    OGG = "ogg"
    """An Ogg container with Vorbis or Opus."""
    OPUS = "opus"
    """Opus in an Ogg container."""


class ImageFormat(Enum):
    """What an answer's images can be encoded as; the value is its name in a request."""

    PNG = "png"
    JPEG = "jpeg"
    WEBP = "webp"

    @property
    def media_type(self) -> str:
        """What HTTP calls it."""
        return f"image/{self.value}"


class Sound(Struct, frozen=True, kw_only=True):
    """What the samples of an answer's audio are; they are 16-bit, those of one moment side by side."""

    rate_hz: int
    channels: int


class EncodedAudio(Struct, frozen=True, kw_only=True):
    """An audio input as the client sent it, not looked into yet."""

    data: bytes
    format: AudioInputFormat
    """What the client says it is."""
    field: str
    """Where it stands in the request, e.g. `messages[0].content[1].input_audio`."""


class EncodedImage(Struct, frozen=True, kw_only=True):
    """An image input as the client sent it, not looked into yet."""

    base64: str
    """A file, in base64."""
    field: str
    """Where it stands in the request, e.g. `messages[0].content[1].image_url.url`."""
