"""A gateway process from start to end: links, HTTP, drain.

Links and HTTP server live in one task group. A stop signal first makes `/readyz` fail and refuses new
requests, then lets the running ones finish within the plan's grace, then closes.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from socket import AddressFamily, create_server
from socket import socket as Socket  # noqa: N812 - a type here, and its variable is a socket
from typing import Final

import structlog
import uvicorn
from fastapi import FastAPI

from omnistage_common.addresses import Address, reachable
from omnistage_common.errors import SetupError
from omnistage_common.ids import new_incarnation, this_host
from omnistage_common.links.replica_link import ReplicaLink
from omnistage_common.pipeline.plan import PipelinePlan
from omnistage_common.processes import settle_heap
from omnistage_common.signals import StopSignals
from omnistage_common.telemetry import new_registry
from omnistage_common.tensors import SHARED_MEMORY_FOLDER, TensorPlane, remove_stale
from omnistage_common.transfers import transports_for
from omnistage_gateway.admission import Admission
from omnistage_gateway.app import build_app
from omnistage_gateway.endpoints.exchange import Services
from omnistage_gateway.media.preparing import prepare_media
from omnistage_gateway.metrics import GatewayMetrics
from omnistage_gateway.pipelines.catalog import Catalog, Pipeline
from omnistage_gateway.pipelines.routing import Routes
from omnistage_gateway.replicas.pool import StagePool
from omnistage_gateway.settings import GatewaySettings, ReplicaEndpoint
from omnistage_gateway.tensor_door import tensor_door

__all__ = ["GatewayServer"]

_log = structlog.get_logger()

KEEP_ALIVE: Final = 75
"""Seconds for which an idle connection is kept; longer than usual proxies keep theirs."""


class GatewayServer:
    """One gateway process."""

    def __init__(
        self,
        settings: GatewaySettings,
        plan: PipelinePlan,
        endpoints: Iterable[ReplicaEndpoint],
    ) -> None:
        """Makes the gateway without connecting or listening.

        Raises:
            SetupError: An endpoint belongs to a stage that the plan does not have.
        """
        self._settings = settings
        self._grace = plan.timeouts.drain
        self._takes = frozenset(item.kind for stage in plan.stages for item in stage.consumes)
        self._makes = frozenset(output.kind for output in plan.outputs)
        self._links = tuple(ReplicaLink(endpoint) for endpoint in endpoints)
        self._plane = TensorPlane(
            incarnation=new_incarnation(),
            host=this_host(),
            slab_bytes=settings.slab_bytes,
            address=str(reachable(settings.tensors)) if settings.tensors else "",
            transports=transports_for(plan.transport),
        )
        self._admission = Admission(
            max_requests=settings.max_requests,
            max_body_bytes=settings.max_body_bytes,
            body_budget_bytes=settings.body_budget_bytes,
        )
        self._app = self._build_app(plan)

    def _build_app(self, plan: PipelinePlan) -> FastAPI:
        registry = new_registry()
        catalog = Catalog([_pipeline(plan, self._links)])
        metrics = GatewayMetrics(registry, admission=self._admission, catalog=catalog)
        services = Services(
            catalog=catalog, admission=self._admission, plane=self._plane, metrics=metrics
        )
        return build_app(services, registry)

    async def run(self) -> None:
        """Serves until a stop signal, then drains.

        Raises:
            SetupError: The address cannot be listened on.
            MissingDependency: What decodes or encodes the pipeline's media is not installed.
        """
        remove_stale(SHARED_MEMORY_FOLDER)
        prepare_media(self._takes, self._makes)
        socket = _listen(self._settings.listen)
        server = _HttpServer(self._app, self._grace)
        settle_heap()
        try:
            with StopSignals() as stop:
                async with (
                    tensor_door(self._plane, self._settings.tensors),
                    asyncio.TaskGroup() as group,
                ):
                    links = [group.create_task(link.run()) for link in self._links]
                    http = group.create_task(server.serve(sockets=[socket]))
                    stopping = group.create_task(stop.wait())
                    await asyncio.wait((http, stopping), return_when=asyncio.FIRST_COMPLETED)
                    self._admission.close()
                    server.should_exit = True
                    await asyncio.wait((http,))
                    for task in (*links, stopping):
                        task.cancel()
        finally:
            self._plane.close()
        _log.info("drained", left=self._admission.requests)


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers, which would end the process behind our back."""

    def __init__(self, app: FastAPI, grace: float) -> None:
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
                timeout_graceful_shutdown=max(1, round(grace)),
            )
        )

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


def _pipeline(plan: PipelinePlan, links: Iterable[ReplicaLink]) -> Pipeline:
    links = tuple(links)
    known = {stage.name for stage in plan.stages}
    for link in links:
        if link.endpoint.stage not in known:
            raise SetupError(
                f"endpoint {link.endpoint.replica} is of stage {link.endpoint.stage!r}, which"
                f" {plan.name} does not have",
                field="--endpoints",
            )
    pools = {
        stage.name: StagePool(
            stage.name,
            (link for link in links if link.endpoint.stage == stage.name),
            max_running=stage.limits.max_running,
        )
        for stage in plan.stages
    }
    return Pipeline(plan=plan, routes=Routes(plan), pools=pools)
