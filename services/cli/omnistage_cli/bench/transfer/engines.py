"""Two engines for the ends of a stream edge: one notes when it emits a piece, one when it has it.

They are engines like anybody's, so the stages that run them are the platform's as they are. Both ends
read the same monotonic clock.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from omnistage_cli.bench.transfer.contents import STAMP, departure
from omnistage_common.errors import EngineFailed, InvalidRequest
from omnistage_common.ids import OutputName
from omnistage_common.payloads import (
    Conversation,
    ElementType,
    Payload,
    PayloadKind,
    Tensor,
    TensorHeader,
    TextPart,
)
from omnistage_stage.engines.arguments import parse_arguments, sole_output
from omnistage_stage.engines.protocol import (
    EngineRequest,
    EngineResult,
    EngineSpec,
    Outputs,
)

__all__ = ["ENGINES", "PIECE_BYTES", "ArrivalEngine", "DepartureEngine", "Emission"]

PIECE_BYTES: Final = 4096
_ELEMENT: Final = ElementType.INT64
_HEADER: Final = TensorHeader(element_type=_ELEMENT, shape=(1, PIECE_BYTES // _ELEMENT.size))
_QUESTION: Final = OutputName("conversation")
_REST: Final = bytes(PIECE_BYTES - STAMP)


class Emission(Struct, frozen=True, kw_only=True):
    """What a request asks for, as JSON in place of its question."""

    pieces: Annotated[int, Meta(ge=1)]
    pause_seconds: Annotated[float, Meta(ge=0)]
    """Before each piece."""


class DepartureEngine:
    """Emits codec frames with the time at which each left."""

    def __init__(self, spec: EngineSpec) -> None:
        parse_arguments(spec.args, _NoArgs)
        self._name = sole_output(spec, PayloadKind.CODEC_FRAMES)

    async def load(self) -> None:
        """Has nothing to load."""

    async def probe(self) -> None:
        """Is well."""

    async def run(self, request: EngineRequest, outputs: Outputs) -> EngineResult:
        """Emits one piece after the other."""
        wanted = _wanted(request)
        for _ in range(wanted.pieces):
            await asyncio.sleep(wanted.pause_seconds)
            data = time.monotonic_ns().to_bytes(STAMP, "little") + _REST
            tensor = Tensor(header=_HEADER, data=data)
            outputs.emit(self._name, Payload(kind=PayloadKind.CODEC_FRAMES, content=tensor))
        return EngineResult(output_tokens=wanted.pieces)

    async def close(self) -> None:
        """Has nothing to let go of."""


class ArrivalEngine:
    """Reads them and says, as JSON, how many nanoseconds each was on its way."""

    def __init__(self, spec: EngineSpec) -> None:
        parse_arguments(spec.args, _NoArgs)
        self._name = sole_output(spec, PayloadKind.TEXT)
        frames = [name for name, item in spec.consumes.items() if item.streams]
        self._frames = frames[0] if frames else OutputName("")

    async def load(self) -> None:
        """Has nothing to load."""

    async def probe(self) -> None:
        """Is well."""

    async def run(self, request: EngineRequest, outputs: Outputs) -> EngineResult:
        """Reads all that comes."""
        taken: list[int] = []
        async for payload in request.pieces(self._frames):
            now = time.monotonic_ns()
            if not isinstance(payload.content, Tensor):
                raise EngineFailed(f"a piece is {type(payload.content).__name__} and not a tensor")
            taken.append(now - departure(payload.content.data))
        text = msgspec.json.encode(taken).decode()
        outputs.emit(self._name, Payload(kind=PayloadKind.TEXT, content=text))
        return EngineResult(input_tokens=len(taken))

    async def close(self) -> None:
        """Has nothing to let go of."""


class _NoArgs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


def _wanted(request: EngineRequest) -> Emission:
    texts = [
        part.text
        for payload in request.inputs[_QUESTION]
        if isinstance(payload.content, Conversation)
        for message in payload.content.messages
        for part in message.parts
        if isinstance(part, TextPart)
    ]
    try:
        return msgspec.json.decode("".join(texts), type=Emission)
    except msgspec.DecodeError as other:
        raise InvalidRequest(
            f"the question does not say how much to emit: {other}", field="messages"
        ) from other


ENGINES: Final[Mapping[str, type]] = {
    "bench-departure": DepartureEngine,
    "bench-arrival": ArrivalEngine,
}
"""Name in a plan -> the engine; `omnistage_cli.bench.transfer.stage` is a stage that has them."""
