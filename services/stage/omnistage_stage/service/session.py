"""One request on one replica: what its engine emitted and what of it may be sent.

The session is what an engine sees as `Outputs`. It buffers; the link takes frames from it whenever it
writes, so that everything an engine emits while a write is under way leaves in the next one, as one
frame. Consecutive pieces of one text are joined. A consumer without credit therefore costs memory in
proportion to the answer, not to the number of steps.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from omnistage_common.errors import OmnistageError
from omnistage_common.ids import OutputName
from omnistage_common.links.frames import Delivery, End, Error, FromReplica, Open, Usage
from omnistage_common.links.protocol import Acceptor
from omnistage_common.payloads import Output, Payload, PayloadKind, Tensor, TensorRef
from omnistage_common.tensors import LeaseOwner, TensorPlane
from omnistage_stage.engines.protocol import EngineRequest, EngineResult

__all__ = ["Session"]

OUTPUTS_PER_FRAME: Final = 16
"""Bounds a Data frame to a megabyte of inline tensors."""


class Session:
    """Outputs of one request on their way to the link."""

    def __init__(
        self,
        *,
        frame: Open,
        owner: LeaseOwner,
        plane: TensorPlane,
        acceptor: Acceptor,
        wake: Callable[["Session"], None],
    ) -> None:
        self.frame = frame
        self.owner = owner
        self._plane = plane
        self._acceptor = acceptor
        self._wake = wake
        self._pending: list[Output | _Text] = []
        self._marked = False
        """Whether the link knows that there is something to take."""
        self._outcome: EngineResult | OmnistageError | None = None
        self._kept_up = asyncio.Event()
        self._kept_up.set()
        self._queued_at = time.monotonic()
        self._started_at = 0.0
        self._first_output_at = 0.0
        self.usage = Usage()

    async def fetch_inputs(self) -> EngineRequest:
        """The request with every tensor at hand; notes that the engine starts now.

        Raises:
            TensorLost: An input is gone or is not what was published.
        """
        self._started_at = time.monotonic()
        inputs: dict[OutputName, list[Payload]] = {}
        for item in self.frame.inputs:
            content = item.payload.content
            if isinstance(content, TensorRef):
                content = await self._plane.fetch(content)
            payload = Payload(kind=item.payload.kind, content=content)
            inputs.setdefault(item.name, []).append(payload)
        return EngineRequest(
            id=self.frame.request_id,
            inputs={name: tuple(payloads) for name, payloads in inputs.items()},
            parameters=self.frame.parameters,
            deadline=self.frame.deadline,
        )

    def emit(self, name: OutputName, payload: Payload, *, index: int = 0) -> None:
        """See `Outputs.emit`."""
        content = payload.content
        if isinstance(content, Tensor):
            content = self._plane.publish_now(content)
            payload = Payload(kind=payload.kind, content=content)
        self._append(name, payload, index)

    async def put(self, name: OutputName, payload: Payload, *, index: int = 0) -> None:
        """See `Outputs.put`."""
        await self._kept_up.wait()
        content = payload.content
        if isinstance(content, Tensor):
            published = await self._plane.publish(
                content, owner=self.owner, deadline=self.frame.deadline
            )
            payload = Payload(kind=payload.kind, content=published)
        self._append(name, payload, index)

    def _append(self, name: OutputName, payload: Payload, index: int) -> None:
        if isinstance(payload.content, str):
            last = self._pending[-1] if self._pending else None
            if isinstance(last, _Text) and last.index == index and last.name == name:
                last.pieces.append(payload.content)
                return
            self._pending.append(_Text(name, index, payload.kind, payload.content))
        else:
            self._pending.append(Output(name=name, payload=payload, index=index))
        if not self._first_output_at:
            self._first_output_at = time.monotonic()
        if self.frame.delivery is Delivery.DELTAS and not self._marked:
            self._marked = True
            if self._acceptor.credit(self.frame.request) == 0:
                self._kept_up.clear()
            self._wake(self)

    def finish(self, outcome: EngineResult | OmnistageError) -> None:
        """Notes how the request ended; the frame that says so follows the outputs."""
        result = outcome if isinstance(outcome, EngineResult) else EngineResult()
        now = time.monotonic()
        started = self._started_at or now
        first = self._first_output_at or now
        self._outcome = outcome
        self.usage = Usage(
            input_tokens=result.input_tokens,
            output_tokens=result.output_tokens,
            queue_us=_microseconds(started - self._queued_at),
            run_us=_microseconds(now - started),
            first_output_us=_microseconds(first - started),
        )
        self._wake(self)

    @property
    def finished(self) -> bool:
        """Whether it is known how the request ended."""
        return self._outcome is not None

    def credited(self) -> None:
        """More Data frames may be sent."""
        self._kept_up.set()
        if self._pending and (self.finished or self.frame.delivery is Delivery.DELTAS):
            self._wake(self)

    def take_frames(self) -> list[FromReplica]:
        """What can be sent now, in order."""
        self._marked = False
        frames: list[FromReplica] = []
        if isinstance(self._outcome, OmnistageError):
            self._pending.clear()
            self._plane.release_owner(self.owner)
            return _present(self._acceptor.fail(self.frame.request, self._outcome))
        while self._pending and self._acceptor.credit(self.frame.request):
            items = self._pending[:OUTPUTS_PER_FRAME]
            del self._pending[:OUTPUTS_PER_FRAME]
            outputs = [item.joined() if isinstance(item, _Text) else item for item in items]
            data = self._acceptor.data(self.frame.request, outputs)
            if data is not None:
                frames.append(data)
        if self._pending and self.frame.delivery is Delivery.DELTAS:
            self._kept_up.clear()
        if self._outcome is not None and not self._pending:
            reason = self._outcome.finish_reason
            frames += _present(self._acceptor.end(self.frame.request, reason, self.usage))
        return frames


def _present(frame: End | Error | None) -> list[FromReplica]:
    return [] if frame is None else [frame]


def _microseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


class _Text:
    """Pieces of one text that wait; they leave as one."""

    __slots__ = ("index", "kind", "name", "pieces")

    def __init__(self, name: OutputName, index: int, kind: PayloadKind, text: str) -> None:
        self.name = name
        self.index = index
        self.kind = kind
        self.pieces = [text]

    def joined(self) -> Output:
        """The output that the pieces make up."""
        payload = Payload(kind=self.kind, content="".join(self.pieces))
        return Output(name=self.name, payload=payload, index=self.index)
