"""A stage process from start to end: listen, load, serve, drain, close.

The gRPC port answers from the first moment (health says NOT_SERVING, links say LOADING), so that
"loading" and "dead" are never the same thing to a peer. The engine loads meanwhile, must pass a real
probe, and only then is the replica READY. A stop signal drains; a second one ends at once. An engine
that fails a request is probed again; when it fails the probe too, the replica is FAILED and the
process ends with an error, for whoever started it to replace it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import grpc.aio
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry, start_http_server

from omnistage_common.addresses import Address, reachable
from omnistage_common.channels import SERVER_OPTIONS
from omnistage_common.errors import OmnistageError, SetupError
from omnistage_common.ids import ReplicaId, new_incarnation, this_host
from omnistage_common.links.frames import Phase
from omnistage_common.pipeline.assignments import Assignment
from omnistage_common.processes import settle_heap
from omnistage_common.signals import StopSignals
from omnistage_common.telemetry import new_registry
from omnistage_common.tensors import SHARED_MEMORY_FOLDER, TensorPlane, remove_stale
from omnistage_common.transfers import transports_for
from omnistage_stage.engines.registry import make_engine
from omnistage_stage.engines.specs import spec_of
from omnistage_stage.service.admission import Admission
from omnistage_stage.service.draining import Drain
from omnistage_stage.service.lifecycle import Lifecycle
from omnistage_stage.service.metrics import StageMetrics
from omnistage_stage.service.peers import Peers
from omnistage_stage.service.replica import Replica
from omnistage_stage.service.servicer import SERVICE_NAMES, register
from omnistage_stage.service.subscriptions import Outlets
from omnistage_stage.settings import StageSettings

__all__ = ["LIVENESS", "StageServer", "bind", "serve_metrics"]

_log = structlog.get_logger()

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
LIVENESS: Final = "omnistage.liveness"
"""Health says SERVING of this from listening to the end, while it loads and drains too."""

CLOSE_GRACE: Final = 1.0
"""Seconds for links to write what is ready after a drain."""
OUTLETS_PER_REQUEST: Final = 4
"""As many consumers, for each request that it takes, may wait for requests that have not come."""


class StageServer:
    """One replica of one stage."""

    def __init__(self, settings: StageSettings, assignment: Assignment) -> None:
        """Makes the replica without loading or listening.

        Raises:
            SetupError: Its engine or engineArgs are wrong.
        """
        self._settings = settings
        self._drain_grace = assignment.drain
        self._registry = new_registry()
        self._replica = _new_replica(settings, assignment, self._registry)
        self._drain = Drain(self._replica.lifecycle)

    async def run(self) -> None:
        """Serves until a stop signal, then drains.

        Raises:
            SetupError: The engine could not be loaded.
            EngineFailed: The engine is beyond use.
        """
        with StopSignals() as stop:
            async with self._listening() as health_servicer:
                serving = asyncio.create_task(self._serve(), name="serve")
                stopping = asyncio.create_task(stop.wait(), name="stop signal")
                telling = asyncio.create_task(self._tell(health_servicer), name="health")
                try:
                    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
                    if serving.done():
                        self._drain.finish_links()
                        await serving
                    await health_servicer.set("", _NOT_SERVING)
                    left = await self._drain.run(self._drain_grace)
                    _log.info("drained", left=left)
                finally:
                    for task in (serving, stopping, telling):
                        task.cancel()
                    await asyncio.gather(serving, stopping, telling, return_exceptions=True)

    async def _tell(self, health_servicer: health.aio.HealthServicer) -> None:
        """Keeps health in step with the phase, whoever changes it."""
        lifecycle, changed = self._replica.lifecycle, asyncio.Event()
        lifecycle.listen(changed.set)
        while True:
            ready = lifecycle.phase is Phase.READY
            await health_servicer.set("", _SERVING if ready else _NOT_SERVING)
            await changed.wait()
            changed.clear()

    async def _serve(self) -> None:
        replica = self._replica
        try:
            await replica.load()
            await replica.probe()
            settle_heap()
            if replica.lifecycle.enter(Phase.READY):
                _log.info("ready", stage=replica.plan.name, engine=replica.plan.engine)
            else:
                _log.info("loaded too late", phase=replica.lifecycle.phase.value)
            while True:
                await replica.suspect.wait()
                replica.suspect.clear()
                await replica.probe()
        except OmnistageError as failure:
            replica.lifecycle.enter(Phase.FAILED, failure.message)
            raise

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[health.aio.HealthServicer]:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        register(server, self._replica, self._drain)
        health_servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
        await health_servicer.set("", _NOT_SERVING)
        await health_servicer.set(LIVENESS, _SERVING)
        reflection.enable_server_reflection(
            (*SERVICE_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        bind(server, self._settings.listen)
        metrics = serve_metrics(self._settings.metrics, self._registry)
        remove_stale(SHARED_MEMORY_FOLDER)
        await server.start()
        _log.info("listening", address=str(self._settings.listen))
        try:
            yield health_servicer
        finally:
            await server.stop(CLOSE_GRACE)
            await self._replica.peers.close()
            await self._replica.engine.close()
            self._replica.plane.close()
            metrics()


def _new_replica(
    settings: StageSettings, assignment: Assignment, registry: CollectorRegistry
) -> Replica:
    stage = assignment.stage
    engine = make_engine(stage.engine, spec_of(assignment, settings.gang))
    incarnation, host = new_incarnation(), this_host()
    plane = TensorPlane(
        incarnation=incarnation,
        host=host,
        slab_bytes=stage.limits.slab_bytes,
        address=str(reachable(settings.listen)),
        transports=transports_for(assignment.transport),
    )
    waiting = OUTLETS_PER_REQUEST * (stage.limits.max_running + stage.limits.max_queued)
    admission = Admission(max_running=stage.limits.max_running, max_queued=stage.limits.max_queued)
    return Replica(
        id=settings.replica or ReplicaId(f"{stage.name}-0"),
        plan=stage,
        engine=engine,
        admission=admission,
        lifecycle=Lifecycle(),
        plane=plane,
        outlets=Outlets(max_waiting=waiting),
        peers=Peers(),
        metrics=StageMetrics(registry, admission=admission, plane=plane),
        incarnation=incarnation,
        host=host,
        suspect=asyncio.Event(),
    )


def bind(server: grpc.aio.Server, address: Address) -> None:
    """Has a server listen.

    Raises:
        SetupError: The address is taken, or not of this host.
    """
    try:
        server.add_insecure_port(str(address))
    except RuntimeError as taken:
        raise SetupError(
            f"cannot listen on {address}: another process has the port, or the address is not"
            " of this host",
            field="--listen",
        ) from taken


def serve_metrics(address: Address | None, registry: CollectorRegistry) -> Callable[[], None]:
    """Starts the metrics endpoint; the returned function stops it.

    Raises:
        SetupError: The address cannot be listened on.
    """
    if address is None:
        return lambda: None
    try:
        httpd, thread = start_http_server(address.port, address.host, registry)
    except OSError as taken:
        raise SetupError(
            f"cannot serve metrics on {address}: {taken.strerror}", field="--metrics"
        ) from taken

    def stop() -> None:
        httpd.shutdown()
        httpd.server_close()
        thread.join()

    return stop
