"""What every answer has in common: where pieces go, and what may be done with each.

An answer takes pieces in the order they come and never looks at which stage made them: the plan says
which modality a piece is. Nothing is sent before there is something to send, so that a request that
fails early gets a status of its own. A tensor is a view of its producer's memory until `deliver`
returns: what is needed longer is copied there and then.
"""

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from omnistage_common.errors import EngineFailed
from omnistage_common.ids import StageName
from omnistage_common.payloads import Content, Tensor
from omnistage_common.pipeline.plan import OutputPlan
from omnistage_gateway.media.formats import ImageFormat
from omnistage_gateway.media.images import encode_image
from omnistage_gateway.openai.image_events import MadeImage

__all__ = ["AnswerSink", "Send", "Transcripts", "Waiting", "kept", "made_image", "tensor", "text"]


class Send(Protocol):
    """Sends bytes to the client; waits while its connection is full."""

    def __call__(self, data: bytes, *, last: bool) -> Awaitable[None]:
        """Sends a piece of the stream, or the last one."""


class AnswerSink(Protocol):
    """Where the outputs of a request go."""

    def deliver(self, plan: OutputPlan, content: Content, index: int) -> None:
        """Takes one piece of one output."""

    def progress(self, stage: StageName, done: int, total: int) -> None:
        """Learns how far a stage is, in steps."""

    async def flush(self) -> None:
        """All that came in one turn has been delivered."""


class Transcripts:
    """What was recognised in the client's own input, item by item."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def add(self, index: int, piece: str) -> None:
        """Takes a piece of one item's text."""
        self._texts[index] = self._texts.get(index, "") + piece

    def all(self) -> tuple[str, ...]:
        """The texts in order."""
        return tuple(self._texts[index] for index in sorted(self._texts))


class Waiting:
    """The part of an answer that sends nothing before its end."""

    def progress(self, stage: StageName, done: int, total: int) -> None:
        """See `AnswerSink`."""

    async def flush(self) -> None:
        """See `AnswerSink`."""


def text(content: Content) -> str:
    """A piece of text.

    Raises:
        EngineFailed: It is something else.
    """
    if not isinstance(content, str):
        raise EngineFailed(f"a stage made {type(content).__name__} where the plan says text")
    return content


def tensor(content: Content) -> Tensor:
    """A piece of media, valid until `deliver` returns.

    Raises:
        EngineFailed: It is something else.
    """
    if not isinstance(content, Tensor):
        raise EngineFailed(f"a stage made {type(content).__name__} where the plan says a tensor")
    return content


def kept(content: Content) -> Tensor:
    """A piece of media, valid for as long as it is wanted.

    Raises:
        EngineFailed: It is something else.
    """
    piece = tensor(content)
    return Tensor(header=piece.header, data=bytes(piece.data))


async def made_image(image: Tensor, image_format: ImageFormat, quality: int = 100) -> MadeImage:
    """An image of an answer, encoded in a thread.

    Raises:
        EngineFailed: It is no image.
    """
    data = await asyncio.to_thread(encode_image, image, image_format, quality=quality)
    height, width, _ = image.header.shape
    return MadeImage(data=data, format=image_format, width=width, height=height)
