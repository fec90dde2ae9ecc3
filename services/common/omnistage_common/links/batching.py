"""How many frames make a message.

Few messages cost little (one takes about 0.08 ms of CPU time over both ends, whatever it carries), but
one message with everything makes both ends take turns: the receiver idles while the sender works, and
the other way round. At 32 frames both work at the same time; `docs/explanation/performance.md` has
the measurement. gRPC also bounds a message by its bytes, and one request's large inputs must not break
the link for the others.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

__all__ = ["BYTES_PER_MESSAGE", "FRAMES_PER_MESSAGE", "messages_of"]

FRAMES_PER_MESSAGE: Final = 32
BYTES_PER_MESSAGE: Final = 8 * 1024 * 1024
"""Frames that together are larger leave in several messages; gRPC refuses messages of 64 MiB."""


class _Message(Protocol):
    def ByteSize(self) -> int:  # noqa: N802 - protobuf's name
        """Bytes on the wire."""


F = TypeVar("F")
M = TypeVar("M", bound=_Message)


def messages_of(frames: Sequence[F], encode: Callable[[Sequence[F]], M]) -> Iterator[M]:
    """The messages that carry these frames, in order.

    Args:
        frames: Any number of them.
        encode: Makes one message of some of them.
    """
    for start in range(0, len(frames), FRAMES_PER_MESSAGE):
        yield from _bounded(frames[start : start + FRAMES_PER_MESSAGE], encode)


def _bounded(frames: Sequence[F], encode: Callable[[Sequence[F]], M]) -> Iterator[M]:
    message = encode(frames)
    if len(frames) == 1 or message.ByteSize() <= BYTES_PER_MESSAGE:
        yield message
        return
    half = len(frames) // 2
    yield from _bounded(frames[:half], encode)
    yield from _bounded(frames[half:], encode)
