"""One subscription, from the consumer's side: frames that came, and what of them is done with.

Credit says that the oldest frames are done with, and ends the leases of their tensors at the producer;
so a frame counts when each of its pieces has been let go and every frame before it counts. Frames with
references are reported at once, for their leases take room; others when half the window is, as every
report is a frame too. Nothing here waits.
"""

from collections import deque
from collections.abc import Callable

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import OmnistageError, ProtocolViolation
from omnistage_common.ids import OutputName, RequestNumber
from omnistage_common.links.frames import Data, End, Error, Inlet, Progress
from omnistage_common.links.replica_link import CREDIT, ReplicaLink
from omnistage_common.payloads import Output, Payload, TensorRef
from omnistage_stage.service.peers import Peers

__all__ = ["Feed", "Piece"]


class _Frame:
    """A Data frame that is not done with."""

    __slots__ = ("pieces", "refers", "unread")

    def __init__(self, pieces: "tuple[Piece, ...]") -> None:
        self.pieces = pieces
        self.unread = len(pieces)
        """Pieces that have not been let go."""
        self.refers = any(piece.refers for piece in pieces)


class Piece:
    """One output of a frame."""

    __slots__ = ("kept", "payload")

    def __init__(self, payload: Payload) -> None:
        self.payload = payload
        self.kept = True
        """Whether the producer must keep it."""

    @property
    def refers(self) -> bool:
        """Whether its tensor is still with the producer."""
        return isinstance(self.payload.content, TensorRef)


class Feed:
    """See the module.

    Args:
        inlet: Where to subscribe, and to what.
        news: Called when something came.
    """

    def __init__(self, inlet: Inlet, *, news: Callable[[], None]) -> None:
        self.queues: dict[OutputName, deque[Piece]] = {name: deque() for name in inlet.outputs}
        """What came and was not read, by name of the output."""
        self.ended = False
        """Whether everything has come."""
        self.error: OmnistageError | None = None
        """Why the rest is lost."""
        self._inlet = inlet
        self._news = news
        self._peers: Peers | None = None
        self._link: ReplicaLink | None = None
        self._number = RequestNumber(0)
        self._frames: deque[_Frame] = deque()
        self._homes: dict[Piece, _Frame] = {}
        self._ungranted = 0
        """Frames that are done with, of which the producer does not know."""

    def open(self, peers: Peers, deadline: Deadline) -> None:
        """Subscribes.

        Raises:
            StageUnavailable: This replica is closing.
        """
        self._peers = peers
        self._link = peers.join(self._inlet.address)
        self._number = self._link.subscribe(self, self._inlet, deadline)

    def received(self, frame: Data | Progress | End | Error) -> None:
        """See `Listener`."""
        if isinstance(frame, Data):
            self._take(frame.outputs)
        elif isinstance(frame, End):
            self.ended = True
        elif isinstance(frame, Error):
            self._lose(frame.error)
        self._settle()
        self._news()

    def _take(self, outputs: tuple[Output, ...]) -> None:
        for output in outputs:
            if output.name not in self.queues:
                self._lose(ProtocolViolation(f"the producer sent {output.name!r} unasked"))
                self.close("it sent what was not asked for")
                return
        frame = _Frame(tuple(Piece(output.payload) for output in outputs))
        self._frames.append(frame)
        for output, piece in zip(outputs, frame.pieces, strict=True):
            self._homes[piece] = frame
            self.queues[output.name].append(piece)

    def _lose(self, error: OmnistageError) -> None:
        self.error = error
        self._frames.clear()
        self._homes.clear()
        for queue in self.queues.values():
            queue.clear()

    def let_go(self, piece: Piece) -> None:
        """The producer need not keep a piece any more. Idempotent."""
        piece.kept = False
        frame = self._homes.pop(piece, None)
        if frame is not None:
            frame.unread -= 1
            self._settle()

    def oldest_kept(self) -> Piece | None:
        """The oldest piece that the producer still keeps."""
        if not self._frames:
            return None
        return next(piece for piece in self._frames[0].pieces if piece.kept)

    def _settle(self) -> None:
        refers = False
        while self._frames and not self._frames[0].unread:
            refers = self._frames.popleft().refers or refers
            self._ungranted += 1
        if self._link is None:
            return
        if self.ended:
            if not self._frames:
                self.close("done")
        elif refers or self._ungranted >= CREDIT // 2:
            self._link.grant(self._number, self._ungranted)
            self._ungranted = 0

    def close(self, reason: str) -> None:
        """Wants nothing more. Idempotent."""
        link, self._link = self._link, None
        if link is not None and self._peers is not None:
            link.close(self._number, reason)
            self._peers.leave(link)
