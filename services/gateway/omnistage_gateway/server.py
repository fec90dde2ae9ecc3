"""A gateway process from start to end: pipelines and replicas, HTTP, drain.

Links, source of pipelines and HTTP server live in one task group. A stop signal first makes `/readyz`
fail, while requests are still let in for as long as the settings say; then it refuses new ones, lets
the running ones finish within the pipelines' grace, takes back what was said of this gateway, and
closes.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from socket import AddressFamily, create_server
from socket import socket as Socket  # noqa: N812 - a type here, and its variable is a socket
from typing import Final

import structlog
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from omnistage_common.addresses import Address, reachable
from omnistage_common.errors import SetupError
from omnistage_common.ids import new_incarnation, this_host
from omnistage_common.processes import settle_heap
from omnistage_common.signals import StopSignals
from omnistage_common.tensors import (
    SHARED_MEMORY_FOLDER,
    TensorPlane,
    TransportKind,
    remove_stale,
)
from omnistage_gateway.admission import Admission
from omnistage_gateway.app import build_app
from omnistage_gateway.discovery.source import Discovery
from omnistage_gateway.endpoints.exchange import Services
from omnistage_gateway.metrics import GatewayMetrics
from omnistage_gateway.pipelines.catalog import Catalog
from omnistage_gateway.replicas.fleet import Fleet
from omnistage_gateway.settings import GatewaySettings
from omnistage_gateway.tensor_door import tensor_door
from omnistage_gateway.tensor_planes import TensorPlanes

__all__ = ["GatewayServer", "NewDiscovery"]

_log = structlog.get_logger()

KEEP_ALIVE: Final = 75
"""Seconds for which an idle connection is kept; longer than usual proxies keep theirs."""

NewDiscovery = Callable[[Catalog, Fleet, GatewayMetrics], Discovery]
"""Makes the source of pipelines and replicas."""


class GatewayServer:
    """One gateway process."""

    def __init__(
        self,
        settings: GatewaySettings,
        new_discovery: NewDiscovery,
        registry: CollectorRegistry,
    ) -> None:
        """Makes the gateway without connecting or listening.

        Args:
            settings: Its place and its bounds.
            new_discovery: Makes its source of pipelines and replicas.
            registry: Its metrics.

        Raises:
            SetupError: What its source was given does not fit together.
        """
        self._settings = settings
        self._catalog = Catalog()
        self._fleet = Fleet()
        self._planes = TensorPlanes(partial(_new_plane, settings))
        self._admission = Admission(
            max_requests=settings.max_requests,
            max_body_bytes=settings.max_body_bytes,
            body_budget_bytes=settings.body_budget_bytes,
        )
        metrics = GatewayMetrics(registry, admission=self._admission, catalog=self._catalog)
        self._discovery = new_discovery(self._catalog, self._fleet, metrics)
        services = Services(
            catalog=self._catalog, admission=self._admission, planes=self._planes, metrics=metrics
        )
        self._app = build_app(services, registry, check_ready=self._discovery.check_ready)

    async def run(self) -> None:
        """Serves until a stop signal, then drains.

        Raises:
            SetupError: The address cannot be listened on, or the source cannot be used.
            MissingDependency: What decodes or encodes the pipeline's media is not installed.
        """
        remove_stale(SHARED_MEMORY_FOLDER)
        try:
            with StopSignals() as stop:
                async with (
                    tensor_door(self._planes.publishing, self._settings.tensors),
                    self._fleet,
                ):
                    await self._discovery.start()
                    socket = _listen(self._settings.listen)
                    settle_heap()
                    await self._serve(socket, stop)
                    await self._discovery.say_goodbye()
        finally:
            self._planes.close()
        _log.info("drained", left=self._admission.requests)

    async def _serve(self, socket: Socket, stop: StopSignals) -> None:
        server = _HttpServer(self._app)
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._discovery.run(), name="discovery")
            http = group.create_task(server.serve(sockets=[socket]), name="http")
            stopping = group.create_task(stop.wait(), name="stop signal")
            await asyncio.wait((http, stopping), return_when=asyncio.FIRST_COMPLETED)
            self._admission.leave()
            await asyncio.wait((http,), timeout=self._settings.leave_after)
            self._admission.close()
            server.stop(grace=self._catalog.longest_drain)
            await asyncio.wait((http,))
            following.cancel()
            stopping.cancel()


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers, which would end the process behind our back."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http="httptools",
                lifespan="off",
                access_log=False,
                log_config=None,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=KEEP_ALIVE,
            )
        )

    def stop(self, *, grace: float) -> None:
        """Ends when the running requests have ended, or after that many seconds."""
        self.config.timeout_graceful_shutdown = max(1, round(grace))
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `StopSignals`."""
        yield


def _listen(address: Address) -> Socket:
    family = AddressFamily.AF_INET6 if ":" in address.host else AddressFamily.AF_INET
    try:
        return create_server((address.host, address.port), family=family, backlog=2048)
    except OSError as taken:
        raise SetupError(
            f"cannot listen on {address}: {taken.strerror}; choose another address or end the"
            " process that has it",
            field="--listen",
        ) from taken


def _new_plane(settings: GatewaySettings, transports: tuple[TransportKind, ...]) -> TensorPlane:
    return TensorPlane(
        incarnation=new_incarnation(),
        host=this_host(),
        slab_bytes=settings.slab_bytes,
        address=str(reachable(settings.tensors)) if settings.tensors else "",
        transports=transports,
    )
