"""What a request brings to the stages: its values as they are, its media decoded and published.

Media are decoded in threads, for few requests at once: what a file unfolds to is bounded for each
request, and so is what all of them hold before it lies in the slab.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from omnistage_common.ids import OutputName
from omnistage_common.payloads import Conversation, Output, Payload, PayloadKind, Tensor
from omnistage_gateway.endpoints.exchange import Exchange
from omnistage_gateway.media.audio import decode_audio
from omnistage_gateway.media.formats import EncodedAudio, EncodedImage
from omnistage_gateway.media.images import MAX_PIXELS, decode_image

__all__ = ["AUDIO", "CONVERSATION", "IMAGE", "TEXT", "Inputs", "conversation_input", "media_inputs"]

CONVERSATION: Final = OutputName("conversation")
TEXT: Final = OutputName("text")
AUDIO: Final = OutputName("audio")
IMAGE: Final = OutputName("image")

Inputs = Mapping[OutputName, tuple[Output, ...]]


def conversation_input(conversation: Conversation) -> dict[OutputName, tuple[Output, ...]]:
    """The input that every chat brings."""
    payload = Payload(kind=PayloadKind.CONVERSATION, content=conversation)
    return {CONVERSATION: (Output(name=CONVERSATION, payload=payload),)}


async def media_inputs(
    exchange: Exchange, audio: tuple[EncodedAudio, ...], images: tuple[EncodedImage, ...]
) -> dict[OutputName, tuple[Output, ...]]:
    """The inputs that are media; only those that there are.

    Raises:
        InvalidRequest: One is not what it should be; names its field.
        DeadlineExceeded: There was no room before the deadline.
    """
    inputs: dict[OutputName, tuple[Output, ...]] = {}
    async with exchange.services.decoders:
        if audio:
            inputs[AUDIO] = tuple(
                [
                    await _published(
                        exchange, AUDIO, index, await asyncio.to_thread(decode_audio, encoded)
                    )
                    for index, encoded in enumerate(audio)
                ]
            )
        if images:
            inputs[IMAGE] = await _images(exchange, images)
    return inputs


async def _images(exchange: Exchange, images: tuple[EncodedImage, ...]) -> tuple[Output, ...]:
    outputs: list[Output] = []
    pixels = MAX_PIXELS
    for index, encoded in enumerate(images):
        tensor = await asyncio.to_thread(decode_image, encoded, max_pixels=pixels)
        height, width, _ = tensor.header.shape
        pixels -= height * width
        outputs.append(await _published(exchange, IMAGE, index, tensor))
    return tuple(outputs)


async def _published(exchange: Exchange, name: OutputName, index: int, tensor: Tensor) -> Output:
    kind = PayloadKind.WAVEFORM if name == AUDIO else PayloadKind.IMAGE
    content = await exchange.services.plane.publish(
        tensor, owner=exchange, deadline=exchange.deadline
    )
    return Output(name=name, index=index, payload=Payload(kind=kind, content=content))
