"""Outputs of one request on their way to one receiver.

An outbox buffers; the link takes Data frames from it whenever it writes, so that everything an engine
emits while a write is under way leaves in the next one, as one frame. Consecutive pieces of one text
are joined. A receiver without credit therefore costs memory in proportion to the answer, not to the
number of steps. A receiver may come later than the first outputs; until then it has no credit.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from omnistage_common.ids import LeaseId, OutputName, RequestNumber
from omnistage_common.links.frames import Data
from omnistage_common.links.protocol import Acceptor
from omnistage_common.payloads import Output, Payload, PayloadKind, TensorRef
from omnistage_stage.service.gathering import Gathering
from omnistage_stage.service.sharing import LeaseShares

__all__ = ["OUTPUTS_PER_FRAME", "ChunkedOutbox", "Outbox"]

OUTPUTS_PER_FRAME: Final = 16
"""Bounds a Data frame to a megabyte of inline tensors."""


class Outbox:
    """See the module.

    Args:
        eager: Whether outputs leave as they are made; otherwise all at the end.
        shares: Told which tensors the receiver has done with; None for one that keeps them to the
            end of the request.
    """

    def __init__(self, *, eager: bool = True, shares: LeaseShares | None = None) -> None:
        self._eager = eager
        self._shares = shares
        self._acceptor: Acceptor | None = None
        self._number = RequestNumber(0)
        self._wake: Callable[[], None] | None = None
        self._pending: list[Output | _Text] = []
        self._marked = False
        """Whether the link knows that there is something to take."""
        self._unread: deque[list[LeaseId]] | None = None
        """Leases in each frame that was sent and is not done with, oldest first."""
        self._kept_up = asyncio.Event()
        self._kept_up.set()
        self.closed = False
        """Whether nobody reads it any more; then it takes nothing."""

    def attach(self, acceptor: Acceptor, number: RequestNumber, wake: Callable[[], None]) -> None:
        """The receiver is there.

        Args:
            acceptor: Of its link.
            number: Of its request there.
            wake: Called when there is something to take.
        """
        self._acceptor, self._number, self._wake = acceptor, number, wake
        if acceptor.credit(number):
            self._kept_up.set()
        if self._pending and self._eager:
            self._mark()

    @property
    def empty(self) -> bool:
        """Whether everything that was made has been taken."""
        return not self._pending

    async def keeps_up(self) -> None:
        """Returns when the receiver keeps up: it has credit, and less than a frame waits for it."""
        await self._kept_up.wait()

    def append(self, name: OutputName, payload: Payload, index: int) -> None:
        """Takes an output, or the next piece of one."""
        if isinstance(payload.content, str):
            last = self._pending[-1] if self._pending else None
            if isinstance(last, _Text) and last.index == index and last.name == name:
                last.pieces.append(payload.content)
                return
            self._pending.append(_Text(name, index, payload.kind, payload.content))
        else:
            self._pending.append(Output(name=name, payload=payload, index=index))
        if not self._eager:
            return
        if not self._marked:
            self._mark()
        elif len(self._pending) >= OUTPUTS_PER_FRAME:
            self._kept_up.clear()

    def finish(self) -> None:
        """Nothing more is made."""

    def _mark(self) -> None:
        if self._acceptor is None or self._wake is None:
            self._kept_up.clear()
            return
        self._marked = True
        if self._acceptor.credit(self._number) == 0:
            self._kept_up.clear()
        self._wake()

    def credited(self, frames: int) -> None:
        """The receiver grants that many frames, and has done with the tensors of as many."""
        self._kept_up.set()
        if self._unread and self._shares is not None:
            for _ in range(min(frames, len(self._unread))):
                self._shares.done(self._unread.popleft())
        if self._pending and self._eager and self._wake is not None:
            self._wake()

    def take(self) -> list[Data]:
        """What can be sent now, in order; to be called when the receiver is there."""
        self._marked = False
        frames: list[Data] = []
        acceptor, number = self._acceptor, self._number
        while self._pending and acceptor is not None and acceptor.credit(number):
            items = self._pending[:OUTPUTS_PER_FRAME]
            del self._pending[:OUTPUTS_PER_FRAME]
            outputs = [item.joined() if isinstance(item, _Text) else item for item in items]
            data = acceptor.data(number, outputs)
            if data is not None:
                frames.append(data)
                if self._shares is not None:
                    self._unread = self._unread or deque()
                    self._unread.append(_leases(outputs))
        if self._pending and self._eager:
            self._kept_up.clear()
        else:
            self._kept_up.set()
        return frames

    def close(self) -> None:
        """Nobody reads it any more: drops what waits, and has done with every tensor. Idempotent."""
        self.closed = True
        self._wake = None
        if self._shares is not None:
            for leases in self._unread or ():
                self._shares.done(leases)
            self._shares.done(_leases(self._pending))
        self._unread = None
        self._pending.clear()
        self._kept_up.set()


class ChunkedOutbox(Outbox):
    """One whose receiver wants frames in chunks; what is not a whole chunk does not wait for it."""

    def __init__(self, gathering: Gathering, *, shares: LeaseShares) -> None:
        super().__init__(shares=shares)
        self._gathering = gathering

    def append(self, name: OutputName, payload: Payload, index: int) -> None:
        """Takes an output, or the next piece of one."""
        for chunk in self._gathering.add(Output(name=name, payload=payload, index=index)):
            super().append(chunk.name, chunk.payload, chunk.index)

    def finish(self) -> None:
        """Nothing more is made: what was gathered leaves, however little it is."""
        for chunk in self._gathering.rest():
            super().append(chunk.name, chunk.payload, chunk.index)


def _leases(outputs: Iterable["Output | _Text"]) -> list[LeaseId]:
    return [
        output.payload.content.lease
        for output in outputs
        if isinstance(output, Output) and isinstance(output.payload.content, TensorRef)
    ]


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
