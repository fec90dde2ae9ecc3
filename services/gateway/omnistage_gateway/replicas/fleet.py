"""One link to every replica that some pipeline uses, for as long as it has something to do.

Who knows the replicas (a file, a cluster) says which there are (`place`); who serves pipelines says
which services are used (`acquire`, `release`). Links are there for what is both. A replica that is not
named any more gets no new requests; its link stays until those that it has have ended, or it breaks,
and takes requests again at once when the replica is named again. Everything happens on one event loop.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Self

import structlog

from omnistage_common.ids import StageName
from omnistage_common.links.replica_link import ReplicaLink
from omnistage_gateway.replicas.endpoints import ReplicaEndpoint, ServiceKey
from omnistage_gateway.replicas.pool import StagePool

__all__ = ["Fleet"]

_log = structlog.get_logger()


class _Service:
    """The replicas of one service."""

    def __init__(self) -> None:
        self.named: tuple[ReplicaEndpoint, ...] = ()
        """Those that should get requests."""
        self.links: dict[ReplicaEndpoint, ReplicaLink] = {}
        """Those that there is a link to."""
        self.pool: StagePool | None = None
        """None while nobody uses it."""
        self.users = 0


class Fleet:
    """See the module. An async context: links live within it.

    Args:
        connect: Makes a link, which is not open yet.
    """

    def __init__(self, connect: Callable[[ReplicaEndpoint], ReplicaLink] = ReplicaLink) -> None:
        self._connect = connect
        self._services: dict[ServiceKey, _Service] = {}
        self._tasks: dict[ReplicaLink, asyncio.Task[None]] = {}
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._tasks.values():
            task.cancel()
        # The group must not wrap what ended the body; a cancellation may be its own doing.
        if isinstance(error, asyncio.CancelledError):
            await self._group.__aexit__(kind, error, traceback)
        else:
            await self._group.__aexit__(None, None, None)

    @property
    def links(self) -> tuple[ReplicaLink, ...]:
        """All links, also those that take no requests any more."""
        return tuple(self._tasks)

    def acquire(self, key: ServiceKey, stage: StageName, *, max_running: int) -> StagePool:
        """The pool of a service, which is kept until it was released as often as acquired.

        Args:
            key: Which.
            stage: What its replicas are called in metrics and messages.
            max_running: Requests that one of them runs at once.
        """
        service = self._services.setdefault(key, _Service())
        service.users += 1
        if service.pool is None:
            service.pool = StagePool(stage, max_running=max_running)
            self._adjust(service, service.pool)
        return service.pool

    def release(self, key: ServiceKey) -> None:
        """One user less; with the last one the links go."""
        service = self._services[key]
        service.users -= 1
        if service.users or service.pool is None:
            return
        pool, service.pool = service.pool, None
        pool.replace(())
        for endpoint in tuple(service.links):
            self._retire(service, endpoint)
        if not service.named:
            del self._services[key]

    def place(self, key: ServiceKey, endpoints: Iterable[ReplicaEndpoint]) -> None:
        """Names the replicas of a service that should get requests, all of them."""
        service = self._services.setdefault(key, _Service())
        service.named = tuple(dict.fromkeys(endpoints))
        if service.pool is not None:
            self._adjust(service, service.pool)
        elif not service.named:
            del self._services[key]

    def _adjust(self, service: _Service, pool: StagePool) -> None:
        """Makes the links such as the named replicas are."""
        for endpoint in service.named:
            link = service.links.get(endpoint)
            if link is None:
                link = service.links[endpoint] = self._start(endpoint)
            link.on_idle, link.on_phase = None, pool.refresh
        for endpoint in service.links.keys() - set(service.named):
            self._retire(service, endpoint)
        self._show(service, pool)

    def _show(self, service: _Service, pool: StagePool) -> None:
        named = set(service.named)
        pool.replace(
            [service.links[endpoint] for endpoint in service.named],
            leaving=[link for endpoint, link in service.links.items() if endpoint not in named],
        )

    def _start(self, endpoint: ReplicaEndpoint) -> ReplicaLink:
        link = self._connect(endpoint)
        task = self._group.create_task(link.run(), name=f"link to {endpoint.replica}")
        self._tasks[link] = task
        task.add_done_callback(lambda _: self._tasks.pop(link))
        return link

    def _retire(self, service: _Service, endpoint: ReplicaEndpoint) -> None:
        """Lets go of a link as soon as no request needs it."""
        link = service.links[endpoint]
        if link.idle:
            self._end(service, endpoint)
        elif link.on_idle is None:
            _log.info("replica leaves", replica=endpoint.replica, requests=link.outstanding)
            link.on_idle = partial(self._end, service, endpoint)

    def _end(self, service: _Service, endpoint: ReplicaEndpoint) -> None:
        link = service.links.pop(endpoint)
        link.on_idle = link.on_phase = None
        self._tasks[link].cancel()
        if service.pool is not None:
            self._show(service, service.pool)
