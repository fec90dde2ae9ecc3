"""What the tests of every talker need: one that is loaded, what it is fed, and an ear for its codes.

It knows of no model family: a test brings the checkpoint, the questions and what must be heard.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import torch
from msgspec import structs

from fakes.engine_io import RecordedOutputs, engine_spec
from omnistage_common.errors import TensorLost
from omnistage_common.ids import OutputName
from omnistage_common.payloads import Payload, PayloadKind
from omnistage_stage.engines.protocol import EngineRequest
from omnistage_stage.engines.torch import TorchEngine
from omnistage_stage.engines.torch.conversion import from_payload, to_payload
from omnistage_stage.engines.torch.talker import TalkerComponent

__all__ = [
    "FRAMES",
    "Arrivals",
    "Listener",
    "breaking_off",
    "codes_of",
    "dice",
    "in_bursts",
    "slots",
    "stopping_short",
    "talking",
    "without",
]

FRAMES: Final = 14
"""The most that a talker says where nothing else is said."""

Arrivals = Callable[[list[Payload]], AsyncIterator[Payload]]
"""How the pieces of an input arrive."""


class Listener(RecordedOutputs):
    """Hears frames, and can wait for some number of them."""

    def __init__(self) -> None:
        super().__init__()
        self._more = asyncio.Event()

    def emit(self, name: OutputName, payload: Payload, *, index: int = 0) -> None:
        """Hears a frame."""
        super().emit(name, payload, index=index)
        self._more.set()

    async def has(self, frames: int) -> None:
        """Waits for so many frames."""
        while len(self.pieces) < frames:
            self._more.clear()
            await self._more.wait()

    @property
    def codes(self) -> Any:
        """The codes of all frames, int64 [frames, codes]."""
        return torch.cat([from_payload(payload) for payload in self.payloads])


@asynccontextmanager
async def talking(folder: Path, **arguments: Any) -> AsyncIterator[TorchEngine]:
    """A talker that is loaded; nothing may be left in it at the end."""
    engine = TorchEngine(
        engine_spec(
            {"codes": PayloadKind.CODEC_FRAMES},
            model=folder.as_uri(),
            component="talker",
            **({"max_frames": FRAMES} | arguments),
        )
    )
    await engine.load()
    await engine.probe()
    yield engine
    assert engine.active == 0
    await engine.close()


async def codes_of(engine: TorchEngine, request: EngineRequest) -> Any:
    """The codes of one request."""
    heard = Listener()
    await engine.run(request, heard)
    return heard.codes


def slots(engine: TorchEngine) -> int:
    """Places that requests have in the padded cache."""
    component = engine._component
    assert isinstance(component, TalkerComponent)
    return component.slots


def dice(seed: int) -> random.Random:
    """A source of pauses and sizes."""
    return random.Random(seed)  # noqa: S311


async def in_bursts(pieces: list[Payload], chance: random.Random) -> AsyncIterator[Payload]:
    """Pieces in groups of random size, with pauses of random length between them."""
    while pieces:
        for _ in range(chance.randrange(12)):
            await asyncio.sleep(0)
        size = chance.randrange(1, 5)
        group, pieces = pieces[:size], pieces[size:]
        rows = torch.cat([from_payload(piece) for piece in group])
        yield to_payload(rows, group[0].kind)


async def stopping_short(pieces: list[Payload]) -> AsyncIterator[Payload]:
    """The first four pieces, and then nothing, for ever."""
    for piece in pieces[:4]:
        yield piece
    await asyncio.Event().wait()


async def breaking_off(pieces: list[Payload]) -> AsyncIterator[Payload]:
    """The first piece, and then the loss of its producer."""
    yield pieces[0]
    raise TensorLost("the thinker is gone")


def without(request: EngineRequest, port: str) -> EngineRequest:
    """The same without what comes at a port."""
    inputs = {name: pieces for name, pieces in request.inputs.items() if name != port}
    return structs.replace(request, inputs=inputs)
