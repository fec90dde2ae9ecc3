"""What moves between stages, as values.

A payload is small data by value (text, a conversation, a tensor of at most 64 KiB) or a reference to
a tensor that its producer holds under a lease. Nothing here knows protobuf, numpy or torch: a tensor
is a header and a buffer, on the host or on an accelerator, and an engine makes of it what its runtime
wants.
"""

from collections.abc import Sequence
from enum import Enum
from math import prod
from typing import Final, Protocol

from msgspec import Struct

from omnistage_common.ids import HostId, Incarnation, LeaseId, OutputName, TensorToken

__all__ = [
    "INLINE_LIMIT",
    "AudioPart",
    "Content",
    "Conversation",
    "DeviceLocation",
    "DeviceMemory",
    "DeviceTensor",
    "DiffusionParameters",
    "ElementType",
    "ImagePart",
    "Message",
    "Output",
    "Parameters",
    "Payload",
    "PayloadKind",
    "SharedMemoryLocation",
    "Tensor",
    "TensorHeader",
    "TensorRef",
    "TextPart",
]

INLINE_LIMIT: Final = 64 * 1024
"""Bytes up to which a tensor rides within a control message."""


class PayloadKind(Enum):
    """What a payload is; the value is its name in a template."""

    CONVERSATION = "conversation"
    TEXT = "text"
    TOKENS = "tokens"
    EMBEDDINGS = "embeddings"
    HIDDEN_STATES = "hidden_states"
    CODEC_FRAMES = "codec_frames"
    LATENTS = "latents"
    KV_CACHE = "kv_cache"
    WAVEFORM = "waveform"
    IMAGE = "image"
    VIDEO = "video"


class ElementType(Enum):
    """Element type of a tensor; the value is its numpy and torch name."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    UINT8 = "uint8"

    @property
    def size(self) -> int:
        """Bytes per element."""
        return _ELEMENT_SIZES[self]


_ELEMENT_SIZES: Final = {
    ElementType.FLOAT32: 4,
    ElementType.FLOAT16: 2,
    ElementType.BFLOAT16: 2,
    ElementType.INT64: 8,
    ElementType.INT32: 4,
    ElementType.INT16: 2,
    ElementType.UINT8: 1,
}


class TensorHeader(Struct, frozen=True, kw_only=True):
    """What a consumer must know before it touches the bytes."""

    element_type: ElementType
    shape: tuple[int, ...]
    """Extent of each dimension, outermost first; C order, no gaps."""
    rate_hz: int = 0
    """Samples or frames per second along the first dimension; 0 where it has no meaning."""

    @property
    def length(self) -> int:
        """Bytes of the whole tensor."""
        return prod(self.shape) * self.element_type.size


class Tensor(Struct, frozen=True, kw_only=True):
    """A tensor whose bytes are at hand."""

    header: TensorHeader
    data: bytes | memoryview
    """C-ordered elements, little endian; `header.length` bytes. May be a read-only view of memory
    that the producer keeps until its lease ends: copy what must live longer than the request."""


class DeviceMemory(Protocol):
    """Memory of an accelerator, of fixed size, that stays where it is; the engine's runtime has it.

    Nothing but the runtime works on it. What the host reads and writes are copies of a few bytes or
    of a piece at a time; they are there when the call returns, and may be made in any thread.
    """

    device: str
    """As its runtime calls it, e.g. `cuda:0`."""
    address: int
    """Of the first byte, as drivers and transfer engines know it; a multiple of 64."""
    size: int
    """Bytes."""
    on_host: bool
    """Whether the processor itself can read it at that address."""

    def read(self, offset: int, length: int) -> memoryview:
        """A copy of some bytes.

        Raises:
            TensorLost: The device does not answer any more.
        """

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Copies bytes of the host, in one dimension, to that place.

        Raises:
            TensorLost: The device does not answer any more.
        """


class DeviceTensor(Struct, frozen=True, kw_only=True):
    """A tensor on an accelerator of this very process; no other process can be told of it."""

    header: TensorHeader
    memory: DeviceMemory
    """Where it is; the runtime that gave it makes a tensor of its own of a place in it."""
    offset: int
    """Of its first byte in there; a multiple of 64."""


class SharedMemoryLocation(Struct, frozen=True, kw_only=True, tag="shared_memory"):
    """A place in the producer's slab, a named segment of its host's shared memory folder."""

    host: HostId
    segment: str
    offset: int
    """Of the first byte of the tensor, from the start of the segment."""


class DeviceLocation(Struct, frozen=True, kw_only=True, tag="device"):
    """A place in the producer's device region; nobody can map it."""

    device: str
    """As the producer's runtime calls it."""
    offset: int
    """Of the first byte of the tensor, from the start of the region."""


class TensorRef(Struct, frozen=True, kw_only=True):
    """A tensor that its producer holds under a lease, and all it takes to get at it."""

    header: TensorHeader
    lease: LeaseId
    incarnation: Incarnation
    length: int
    """Bytes."""
    checksum: int
    """XXH3-64 of the header and a sample of the bytes."""
    location: SharedMemoryLocation | DeviceLocation
    token: TensorToken = TensorToken("")
    """What a reader shows to the producer."""
    address: str = ""
    """`HOST:PORT` of the producer's TensorService; empty when it serves its own host only."""
    digest: int | None = None
    """XXH3-64 of all bytes; None when the producer knew of no peer that reads over a network, and
    for a tensor on a device."""

    @property
    def on_device(self) -> bool:
        """Whether its bytes are on a device of the producer."""
        return isinstance(self.location, DeviceLocation)


class TextPart(Struct, frozen=True, kw_only=True):
    """Text within a chat message."""

    text: str


class AudioPart(Struct, frozen=True, kw_only=True):
    """The place where an audio input of the request stands."""

    index: int
    """Counts the request's audio inputs from 0."""


class ImagePart(Struct, frozen=True, kw_only=True):
    """The place where an image input of the request stands."""

    index: int
    """Counts the request's image inputs from 0."""


class Message(Struct, frozen=True, kw_only=True):
    """One chat message."""

    role: str
    """`system`, `developer`, `user`, `assistant` or `tool`."""
    parts: tuple[TextPart | AudioPart | ImagePart, ...]


class Conversation(Struct, frozen=True, kw_only=True):
    """Chat messages, oldest first."""

    messages: tuple[Message, ...]

    @property
    def audio_count(self) -> int:
        """How many audio inputs the messages refer to."""
        return sum(isinstance(part, AudioPart) for m in self.messages for part in m.parts)

    @property
    def image_count(self) -> int:
        """How many image inputs the messages refer to."""
        return sum(isinstance(part, ImagePart) for m in self.messages for part in m.parts)

    def with_transcripts(self, transcripts: Sequence[str]) -> "Conversation":
        """The same conversation with every audio input replaced by what was said in it.

        Args:
            transcripts: One for each audio input, in order.
        """
        return Conversation(
            messages=tuple(
                Message(
                    role=message.role,
                    parts=tuple(
                        TextPart(text=transcripts[part.index])
                        if isinstance(part, AudioPart)
                        else part
                        for part in message.parts
                    ),
                )
                for message in self.messages
            )
        )


Content = str | Conversation | Tensor | DeviceTensor | TensorRef
"""The content of a payload. A `DeviceTensor` is seen by the engine of its device only."""


class Payload(Struct, frozen=True, kw_only=True):
    """A thing that moves between stages."""

    kind: PayloadKind
    content: Content


class Output(Struct, frozen=True, kw_only=True):
    """A named payload: what a stage consumes, or produces a piece of."""

    name: OutputName
    payload: Payload
    index: int = 0
    """Which item this is a piece of, where a stage makes several of one name; pieces of text of
    one item are deltas."""


class DiffusionParameters(Struct, frozen=True, kw_only=True):
    """How to denoise; None means the pipeline's default."""

    width: int | None = None
    """Pixels."""
    height: int | None = None
    """Pixels."""
    steps: int | None = None
    """Denoising steps."""
    guidance_scale: float | None = None
    """Classifier-free guidance, or what the model has in its place."""
    true_cfg_scale: float | None = None
    """Classifier-free guidance of models that also have a distilled one."""
    negative_prompt: str | None = None
    frames: int | None = None
    """Frames of a video."""
    seconds: float | None = None
    """Length of audio."""
    count: int = 1
    """How many images, videos or sounds."""


class Parameters(Struct, frozen=True, kw_only=True):
    """How to compute; None means the engine's default."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    voice: str | None = None
    speed: float | None = None
    ignore_eos: bool = False
    """Generate `max_tokens` whatever the model says; for load tests."""
    diffusion: DiffusionParameters | None = None
    """For stages that denoise."""
