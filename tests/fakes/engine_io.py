"""What an engine needs around it in a test: a spec, a request, and a place for its outputs."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from omnistage_common.deadlines import Deadline
from omnistage_common.ids import OutputName, StageName, new_request_id
from omnistage_common.payloads import (
    AudioPart,
    Conversation,
    Message,
    Parameters,
    Payload,
    PayloadKind,
    Tensor,
    TextPart,
)
from omnistage_stage.engines.protocol import EngineRequest, EngineSpec

__all__ = [
    "RecordedOutputs",
    "conversation",
    "engine_request",
    "engine_spec",
    "text",
    "user_message",
]


class RecordedOutputs:
    """Keeps what an engine hands over."""

    def __init__(self) -> None:
        self.pieces: list[tuple[OutputName, int, Payload]] = []
        self.steps: list[tuple[int, int]] = []

    def emit(self, name: OutputName, payload: Payload, *, index: int = 0) -> None:
        """Keeps an output."""
        self.pieces.append((name, index, payload))

    async def put(self, name: OutputName, payload: Payload, *, index: int = 0) -> None:
        """Keeps an output."""
        self.emit(name, payload, index=index)

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
