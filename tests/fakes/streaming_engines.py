"""Two engines for the ends of a stream edge: one emits codec frames, one reads them.

What a request wants of them is JSON in its `text` input. Row `i` of the frames has the value `i` modulo
251 in every element, so that a row which is lost, doubled or moved is noticed by whoever reads it.
"""

import asyncio
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from omnistage_common.errors import EngineFailed
from omnistage_common.ids import OutputName
from omnistage_common.payloads import ElementType, Payload, PayloadKind, Tensor, TensorHeader
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, EngineSpec, Outputs

__all__ = ["Emission", "Emitter", "Reader", "Reading"]

CODES: Final = OutputName("codes")
TEXT: Final = OutputName("text")
_VALUES: Final = 251
W = TypeVar("W", bound=Struct)


class Emission(Struct, frozen=True, kw_only=True):
    """What an emitter is asked for."""

    pieces: int = 1
    rows: int = 1
    """In each piece."""
    width: int = 16
    """Bytes of a row."""
    put: bool = True
    """Whether it waits for its consumers."""
    pause: float = 0.0
    """Seconds before each piece."""
    fail: bool = False
    """Whether it breaks after the last piece."""


class Reading(Struct, frozen=True, kw_only=True):
    """What a reader is asked for."""

    pieces: int | None = None
    """How many it reads; None for all."""
    pause: float = 0.0
    """Seconds after each piece."""


class Emitter:
    """Emits codec frames, and a word for each piece."""

    def __init__(self, _spec: EngineSpec) -> None:
        pass

    async def load(self) -> None:
        """Has nothing to load."""

    async def probe(self) -> None:
        """Is well."""

    async def run(self, request: EngineRequest, outputs: Outputs) -> EngineResult:
        """Emits what is asked for."""
        wanted = _wanted(request, Emission)
        for number in range(wanted.pieces):
            if wanted.pause:
                await asyncio.sleep(wanted.pause)
            frames = _frames(number * wanted.rows, wanted)
            if wanted.put:
                await outputs.put(CODES, frames)
            else:
                outputs.emit(CODES, frames)
            outputs.emit(TEXT, Payload(kind=PayloadKind.TEXT, content="x"))
            outputs.progress(number + 1, wanted.pieces)
        if wanted.fail:
            raise EngineFailed("the emitter broke")
        return EngineResult(output_tokens=wanted.pieces * wanted.rows)

    async def close(self) -> None:
        """Has nothing to let go of."""


class Reader:
    """Reads codec frames; says a word for each piece, and what it found at the end."""

    def __init__(self, spec: EngineSpec) -> None:
        self._consumes = spec.consumes

    async def load(self) -> None:
        """Has nothing to load."""

    async def probe(self) -> None:
        """Is well."""

    async def run(self, request: EngineRequest, outputs: Outputs) -> EngineResult:
        """Reads what is asked for."""
        wanted = _wanted(request, Reading)
        rows = pieces = 0
        async for payload in request.pieces(CODES):
            rows = _checked(payload, rows)
            pieces += 1
            outputs.emit(TEXT, Payload(kind=PayloadKind.TEXT, content="x"))
            if pieces == wanted.pieces:
                break
            if wanted.pause:
                await asyncio.sleep(wanted.pause)
        spec = self._consumes.get(CODES)
        found = f" {rows} rows, {'stream' if spec and spec.streams else 'full'}"
        outputs.emit(TEXT, Payload(kind=PayloadKind.TEXT, content=found))
        return EngineResult(input_tokens=rows)

    async def close(self) -> None:
        """Has nothing to let go of."""


def _wanted(request: EngineRequest, kind: type[W]) -> W:
    (payload,) = request.inputs[TEXT]
    return msgspec.json.decode(str(payload.content), type=kind)


def _frames(start: int, wanted: Emission) -> Payload:
    data = b"".join(bytes([(start + row) % _VALUES]) * wanted.width for row in range(wanted.rows))
    header = TensorHeader(element_type=ElementType.UINT8, shape=(wanted.rows, wanted.width))
    return Payload(kind=PayloadKind.CODEC_FRAMES, content=Tensor(header=header, data=data))


def _checked(payload: Payload, start: int) -> int:
    """Rows so far, with those of this piece, each of which must be the next one."""
    content = payload.content
    if not isinstance(content, Tensor):
        raise TypeError(f"{type(content)} in place of frames")
    count, width = content.header.shape
    data = bytes(content.data)
    for row in range(count):
        if data[row * width : (row + 1) * width] != bytes([(start + row) % _VALUES]) * width:
            raise ValueError(f"row {start + row} is not what was sent")
    return start + count
