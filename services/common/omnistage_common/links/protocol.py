"""What each end of a link may do, and when. No I/O, no clock.

The opener (a gateway worker) numbers requests; both ends keep a state for each of them:

    state    opener may        replica may           leads to
    -------  ----------------  --------------------  -----------------------------------------
    OPEN     Credit            Data (with credit)    OPEN
                               Progress              OPEN
             Cancel                                  closed, at once and silently
                               End                   HELD if a Data carried a tensor reference,
                                                     closed otherwise
                               Error                 closed
    HELD     Release, Cancel                         closed

At its deadline the replica closes a request that has ended and still waits for its opener, silently,
as the opener has closed it too. A closed request is forgotten. Frames cross on the wire, so each end
ignores frames for requests that it has already closed, and refuses frames for numbers that were never
opened. Both ends derive HELD from the same frames, so a request without references needs no Release,
which saves a message on the path where messages are the cost.

A request begins with Open, or with Subscribe: then it stands for what a consumer fetches from a
producer, and each Data frame that Credit is granted for is done with.
"""

from collections.abc import Iterable
from enum import Enum

from omnistage_common.errors import OmnistageError, ProtocolViolation
from omnistage_common.ids import RequestNumber
from omnistage_common.links.frames import (
    Cancel,
    Credit,
    Data,
    End,
    Error,
    FinishReason,
    FromOpener,
    FromReplica,
    Open,
    Progress,
    Release,
    Status,
    Subscribe,
    Usage,
)
from omnistage_common.payloads import Output

__all__ = ["Acceptor", "Opener", "RequestState"]


class RequestState(Enum):
    """Where a request on a link is; a closed request has no state."""

    OPEN = "open"
    HELD = "held"


class _Request:
    """What one end remembers of a request."""

    __slots__ = ("credit", "data_frames", "holds_tensors", "state")

    def __init__(self, credit: int) -> None:
        self.state = RequestState.OPEN
        self.credit = credit
        self.data_frames = 0
        self.holds_tensors = False

    def count(self, frame: Data) -> None:
        self.data_frames += 1
        self.credit -= 1
        self.holds_tensors = self.holds_tensors or frame.holds_tensors


class Opener:
    """The end that opens requests."""

    def __init__(self) -> None:
        self._last = RequestNumber(0)
        self._requests: dict[RequestNumber, _Request] = {}

    def next_number(self) -> RequestNumber:
        """The number that the next Open must carry."""
        return RequestNumber(self._last + 1)

    def open(self, frame: Open | Subscribe) -> None:
        """Notes that a request was opened.

        Raises:
            ProtocolViolation: Its number is not the next one.
        """
        if frame.request != self._last + 1:
            raise ProtocolViolation(f"request number {frame.request} after {self._last}")
        self._last = frame.request
        self._requests[frame.request] = _Request(frame.credit)

    def credit(self, number: RequestNumber, frames: int) -> Credit | None:
        """The Credit to send, None when the request is over."""
        request = self._requests.get(number)
        if request is None or request.state is not RequestState.OPEN:
            return None
        request.credit += frames
        return Credit(request=number, frames=frames)

    def cancel(self, number: RequestNumber, reason: str) -> Cancel | None:
        """Closes a request; the Cancel to send, None when there is nothing to cancel."""
        if self._requests.pop(number, None) is None:
            return None
        return Cancel(request=number, reason=reason)

    def release(self, number: RequestNumber) -> Release | None:
        """Closes a held request; the Release to send, None when nothing is held."""
        request = self._requests.get(number)
        if request is None or request.state is not RequestState.HELD:
            return None
        del self._requests[number]
        return Release(request=number)

    def receive(self, frame: FromReplica) -> bool:
        """Whether the frame concerns a request that is still open here.

        Raises:
            ProtocolViolation: The replica broke the protocol.
        """
        if isinstance(frame, Status):
            return True
        request = self._requests.get(frame.request)
        if request is None:
            if not 0 < frame.request <= self._last:
                raise ProtocolViolation(f"frame for request {frame.request}, never opened")
            return False
        if request.state is RequestState.HELD:
            raise ProtocolViolation(f"frame for request {frame.request} after its End")
        if isinstance(frame, Data):
            self._receive_data(request, frame)
        elif isinstance(frame, End):
            self._receive_end(request, frame)
        elif not isinstance(frame, Progress):
            del self._requests[frame.request]
        return True

    def _receive_data(self, request: _Request, frame: Data) -> None:
        if frame.sequence != request.data_frames:
            raise ProtocolViolation(
                f"Data {frame.sequence} of request {frame.request} came as {request.data_frames}"
            )
        if request.credit <= 0:
            raise ProtocolViolation(f"Data of request {frame.request} without credit")
        request.count(frame)

    def _receive_end(self, request: _Request, frame: End) -> None:
        if frame.data_frames != request.data_frames:
            raise ProtocolViolation(
                f"request {frame.request} ended after {frame.data_frames} Data frames,"
                f" {request.data_frames} came"
            )
        if request.holds_tensors:
            request.state = RequestState.HELD
        else:
            del self._requests[frame.request]

    def state(self, number: RequestNumber) -> RequestState | None:
        """Where a request is, None when it is closed."""
        request = self._requests.get(number)
        return None if request is None else request.state

    def close(self) -> tuple[RequestNumber, ...]:
        """Forgets everything, as the link broke; the requests that were not closed."""
        numbers = tuple(self._requests)
        self._requests.clear()
        return numbers

    def __len__(self) -> int:
        return len(self._requests)


class Acceptor:
    """The replica's end."""

    def __init__(self) -> None:
        self._last = RequestNumber(0)
        self._requests: dict[RequestNumber, _Request] = {}

    def receive(self, frame: FromOpener) -> bool:
        """Whether the frame concerns a request that is still known here.

        Raises:
            ProtocolViolation: The opener broke the protocol.
        """
        if isinstance(frame, Open | Subscribe):
            if frame.request <= self._last:
                raise ProtocolViolation(f"request number {frame.request} after {self._last}")
            self._last = frame.request
            self._requests[frame.request] = _Request(frame.credit)
            return True
        request = self._requests.get(frame.request)
        if request is None:
            if not 0 < frame.request <= self._last:
                raise ProtocolViolation(f"frame for request {frame.request}, never opened")
            return False
        if isinstance(frame, Credit):
            request.credit += frame.frames
            return True
        if isinstance(frame, Release) and request.state is not RequestState.HELD:
            raise ProtocolViolation(f"Release of request {frame.request} before its End")
        del self._requests[frame.request]
        return True

    def credit(self, number: RequestNumber) -> int:
        """Data frames that may be sent now; 0 for a closed request."""
        request = self._requests.get(number)
        if request is None or request.state is not RequestState.OPEN:
            return 0
        return request.credit

    def data(self, number: RequestNumber, outputs: Iterable[Output]) -> Data | None:
        """The Data to send, None when the request is closed.

        Raises:
            ProtocolViolation: There is no credit, or the request has ended.
        """
        request = self._requests.get(number)
        if request is None:
            return None
        if request.state is not RequestState.OPEN or request.credit <= 0:
            raise ProtocolViolation(f"Data of request {number} without credit or after its End")
        frame = Data(request=number, sequence=request.data_frames, outputs=tuple(outputs))
        request.count(frame)
        return frame

    def progress(self, number: RequestNumber, done: int, total: int) -> Progress | None:
        """The Progress to send, None when the request is closed or has ended."""
        if self.state(number) is not RequestState.OPEN:
            return None
        return Progress(request=number, done=done, total=total)

    def end(self, number: RequestNumber, finish_reason: FinishReason, usage: Usage) -> End | None:
        """The End to send, None when the request is closed.

        Raises:
            ProtocolViolation: The request has ended.
        """
        request = self._running(number)
        if request is None:
            return None
        if request.holds_tensors:
            request.state = RequestState.HELD
        else:
            del self._requests[number]
        return End(
            request=number,
            finish_reason=finish_reason,
            usage=usage,
            data_frames=request.data_frames,
        )

    def fail(self, number: RequestNumber, error: OmnistageError) -> Error | None:
        """The Error to send, None when the request is closed.

        Raises:
            ProtocolViolation: The request has ended.
        """
        if self._running(number) is None:
            return None
        del self._requests[number]
        return Error(request=number, error=error)

    def _running(self, number: RequestNumber) -> _Request | None:
        request = self._requests.get(number)
        if request is not None and request.state is not RequestState.OPEN:
            raise ProtocolViolation(f"request {number} has ended already")
        return request

    def expire(self, number: RequestNumber) -> None:
        """Closes a request whose deadline has passed, without a frame."""
        self._requests.pop(number, None)

    def state(self, number: RequestNumber) -> RequestState | None:
        """Where a request is, None when it is closed."""
        request = self._requests.get(number)
        return None if request is None else request.state

    def __len__(self) -> int:
        return len(self._requests)
