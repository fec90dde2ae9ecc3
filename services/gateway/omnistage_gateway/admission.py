"""What the gateway lets in: so many requests, and so many bytes of bodies, at once.

Both are reserved before a body is read, so that a crowd of large uploads is refused rather than
buffered. A body without a declared length reserves the most that it may have.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from omnistage_common.errors import BodyTooLarge, Draining, TooManyRequests

__all__ = ["Admission"]


class Admission:
    """The bounds of one gateway process."""

    def __init__(self, *, max_requests: int, max_body_bytes: int, body_budget_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self._max_requests = max_requests
        self._budget = body_budget_bytes
        self._closed = False
        self.leaving = False
        """Whether this gateway goes out of service soon: it still lets in, and nobody should come."""
        self.requests = 0
        """Requests inside."""
        self.body_bytes = 0
        """Bytes reserved for their bodies."""

    def leave(self) -> None:
        """Goes out of service soon, so that who balances load can look elsewhere first."""
        self.leaving = True

    def close(self) -> None:
        """Lets nobody in any more; those inside finish."""
        self.leaving = self._closed = True

    def check_staying(self) -> None:
        """Returns when this gateway should get requests.

        Raises:
            Draining: It is going out of service, now or soon.
        """
        if self.leaving:
            raise _going()

    def check_open(self) -> None:
        """Returns when requests are let in.

        Raises:
            Draining: This gateway is going out of service.
        """
        if self._closed:
            raise _going()

    @contextmanager
    def enter(self, declared: int | None) -> Iterator[None]:
        """A request's stay.

        Args:
            declared: Bytes of its body as its head says; None when it does not.

        Raises:
            Draining: This gateway is going out of service.
            BodyTooLarge: The body is over the limit.
            TooManyRequests: Too many requests or bytes are inside.
        """
        self.check_open()
        if declared is not None and declared > self.max_body_bytes:
            raise BodyTooLarge(
                f"the body has {declared} bytes, {self.max_body_bytes} are allowed", field="body"
            )
        size = self.max_body_bytes if declared is None else declared
        if self.requests >= self._max_requests:
            raise TooManyRequests(
                f"{self.requests} requests are in flight, as many as this gateway takes; try again"
            )
        if self.body_bytes + size > self._budget:
            raise TooManyRequests("the bodies in flight fill this gateway's budget; try again")
        self.requests += 1
        self.body_bytes += size
        try:
            yield
        finally:
            self.requests -= 1
            self.body_bytes -= size


def _going() -> Draining:
    return Draining("this gateway is going out of service; try again")
