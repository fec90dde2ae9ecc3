"""Taking a replica out of service without losing what it works on.

A drain ends when no request is open, or when the grace period has passed. It waits on an event that
every end of a request and of a link sets; it does not look at a clock in between.
"""

import asyncio
from typing import Protocol

from omnistage_common.links.frames import Phase
from omnistage_stage.service.lifecycle import Lifecycle

__all__ = ["Drain", "DrainableLink"]


class DrainableLink(Protocol):
    """A link, as far as a drain cares."""

    @property
    def open_requests(self) -> int:
        """Requests that are not closed."""

    def finish(self) -> None:
        """Ends the link once everything that is ready has been written."""


class Drain:
    """Knows the links of a replica and when they are idle."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._links: set[DrainableLink] = set()
        self._idle: asyncio.Event | None = None

    @property
    def open_requests(self) -> int:
        """Requests that are not closed, over all links."""
        return sum(link.open_requests for link in self._links)

    def joined(self, link: DrainableLink) -> None:
        """A link was opened."""
        self._links.add(link)

    def left(self, link: DrainableLink) -> None:
        """A link is gone, and its requests with it."""
        self._links.discard(link)
        self.changed()

    def changed(self) -> None:
        """A request was closed."""
        if self._idle is not None and self.open_requests == 0:
            self._idle.set()

    async def run(self, grace: float | None) -> int:
        """Takes the replica out of service and waits until it is idle.

        Args:
            grace: Seconds to wait at most; None waits until the requests' own deadlines.

        Returns:
            Requests that are still open; 0 unless the grace period passed.
        """
        self._lifecycle.enter(Phase.DRAINING, "going out of service")
        if self._idle is None:
            self._idle = asyncio.Event()
        self.changed()
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            return self.open_requests
        self.finish_links()
        return 0

    def finish_links(self) -> None:
        """Ends every link once what is ready has been written."""
        for link in tuple(self._links):
            link.finish()
