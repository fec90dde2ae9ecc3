"""What an engine needs around it in a test: a spec, a request, and a place for its outputs."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Self

from omnistage_common.deadlines import Deadline
from omnistage_common.ids import OutputName, StageName, new_request_id
from omnistage_common.payloads import (
    AudioPart,
    Conversation,
    DeviceTensor,
    Message,
    Parameters,
    Payload,
    PayloadKind,
    Tensor,
    TensorHeader,
    TextPart,
)
from omnistage_stage.engines.protocol import EngineRequest, EngineSpec

__all__ = [
    "RecordedOutputs",
    "RecordedPlace",
    "conversation",
    "engine_request",
    "engine_spec",
    "text",
    "user_message",
]


class RecordedPlace:
    """Memory for an output that is put when it is sealed."""

    def __init__(
        self,
        outputs: "RecordedOutputs",
        put: Callable[[Tensor], Awaitable[None]],
        most: TensorHeader,
    ) -> None:
        self._outputs = outputs
        self._put = put
        self._most = most
        self.data: memoryview | DeviceTensor = memoryview(bytearray(most.length))

    async def seal(self, header: TensorHeader | None = None) -> None:
        """Puts what was made."""
        made = header or self._most
        assert isinstance(self.data, memoryview)
        await self._put(Tensor(header=made, data=self.data[: made.length]))

    def __enter__(self) -> Self:
        self._outputs.places += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._outputs.places -= 1


class RecordedOutputs:
    """Keeps what an engine hands over."""

    def __init__(self) -> None:
        self.pieces: list[tuple[OutputName, int, Payload]] = []
        self.steps: list[tuple[int, int]] = []
        self.places = 0
        """Places that somebody makes something in."""

    def emit(self, name: OutputName, payload: Payload, *, index: int = 0) -> None:
        """Keeps an output."""
        self.pieces.append((name, index, payload))

    async def put(self, name: OutputName, payload: Payload, *, index: int = 0) -> None:
        """Keeps an output."""
        self.emit(name, payload, index=index)

    async def reserve(
        self,
        name: OutputName,
        kind: PayloadKind,
        header: TensorHeader,
        *,
        index: int = 0,
        on_device: bool = False,  # noqa: ARG002
    ) -> RecordedPlace:
        """Memory of its own."""

        async def put(tensor: Tensor) -> None:
            await self.put(name, Payload(kind=kind, content=tensor), index=index)

        return RecordedPlace(self, put, header)

    def progress(self, done: int, total: int) -> None:
        """Keeps how far it is."""
        self.steps.append((done, total))

    @property
    def payloads(self) -> tuple[Payload, ...]:
        """All payloads, in order."""
        return tuple(payload for _, _, payload in self.pieces)

    @property
    def text(self) -> str:
        """All pieces of text, joined."""
        return "".join(p.content for p in self.payloads if isinstance(p.content, str))

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in order."""
        return [p.content for p in self.payloads if isinstance(p.content, Tensor)]


def engine_spec(
    produces: Mapping[str, PayloadKind], *, model: str = "", max_running: int = 8, **args: Any
) -> EngineSpec:
    """A spec with these `engineArgs`."""
    return EngineSpec(
        stage=StageName("tested"),
        model=model,
        args=args,
        max_running=max_running,
        produces={OutputName(name): kind for name, kind in produces.items()},
    )


def engine_request(
    inputs: Mapping[str, tuple[Payload, ...]],
    parameters: Parameters | None = None,
    *,
    streams: Mapping[str, AsyncIterator[Payload]] | None = None,
) -> EngineRequest:
    """A request with a minute to go."""
    return EngineRequest(
        id=new_request_id(),
        inputs={OutputName(name): payloads for name, payloads in inputs.items()},
        parameters=parameters or Parameters(),
        deadline=Deadline.after(60),
        streams={OutputName(name): stream for name, stream in (streams or {}).items()},
    )


def text(content: str) -> Payload:
    """A payload of text."""
    return Payload(kind=PayloadKind.TEXT, content=content)


def user_message(*parts: str | int) -> Message:
    """A user's message: strings are text, numbers are audio inputs."""
    return Message(
        role="user",
        parts=tuple(
            TextPart(text=part) if isinstance(part, str) else AudioPart(index=part)
            for part in parts
        ),
    )


def conversation(*messages: Message) -> Payload:
    """A payload of chat messages."""
    return Payload(kind=PayloadKind.CONVERSATION, content=Conversation(messages=messages))
