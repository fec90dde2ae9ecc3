"""Pipelines and replicas as a Kubernetes API server has them, followed while they change.

Level-based: whatever is seen, in whatever order, leads to the same catalog and fleet once all of it
was seen. What cannot be read is named once in the log and counted, and is as if it were not there; the
rest serves. While the API server is away everything stays as it was last.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from omnistage_common.errors import OmnistageError, SetupError, StageUnavailable
from omnistage_common.ids import PipelineName, Revision
from omnistage_gateway.discovery.acknowledging import Acknowledger
from omnistage_gateway.discovery.cluster_door import Cluster, Manifest, Watched
from omnistage_gateway.discovery.reading import (
    SeenSlice,
    name_of,
    read_pipeline,
    read_plan,
    read_slice,
    uid_of,
)
from omnistage_gateway.discovery.source import assembled
from omnistage_gateway.pipelines.catalog import Catalog
from omnistage_gateway.pipelines.pipeline import Pipeline, PipelineKey
from omnistage_gateway.pipelines.serving import Acknowledgement
from omnistage_gateway.replicas.endpoints import ReplicaEndpoint, ServiceKey
from omnistage_gateway.replicas.fleet import Fleet

__all__ = ["ClusterDiscovery"]

_log = structlog.get_logger()

SETTLING: Final = 5.0
"""Seconds that links have at the start, before this gateway says that it is ready without them."""

_Name = tuple[str, str]
"""Namespace and name of an object."""


class ClusterDiscovery:
    """See the module.

    Args:
        cluster: The API server.
        catalog: Is told of pipelines.
        fleet: Is told of replicas.
        gateway: Name of this gateway's pod.
        refused: Called with the kind of each object that cannot be read, once.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        catalog: Catalog,
        fleet: Fleet,
        gateway: str,
        refused: Callable[[Watched], None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._catalog = catalog
        self._fleet = fleet
        self._gateway = gateway
        self._count_refused = refused
        self._acknowledger = Acknowledger(cluster, catalog, gateway)
        self._plans: dict[_Name, tuple[str, PipelineKey, Revision]] = {}
        """ConfigMap -> its UID and what it holds; only those that could be read."""
        self._slices: dict[ServiceKey, dict[_Name, tuple[ReplicaEndpoint, ...]]] = {}
        self._services: dict[_Name, ServiceKey] = {}
        """EndpointSlice -> its service."""
        self._refused: dict[tuple[Watched, _Name], str] = {}
        self._synced = asyncio.Event()
        self._news = asyncio.Event()
        self._ready = False

    async def start(self) -> None:
        """See `Discovery`."""
        try:
            await self._cluster.check()
        except SetupError:
            raise
        except OmnistageError as refusal:
            raise SetupError(refusal.message, field="--cluster") from refusal

    async def run(self) -> None:
        """See `Discovery`."""
        self._catalog.on_change = self._said
        async with asyncio.TaskGroup() as group:
            group.create_task(self._cluster.watch(self), name="cluster watch")
            await self._synced.wait()
            await self._settle()
            self._ready = True
            _log.info("in step with the cluster", models=len(self._catalog.models))
            await self._acknowledger.run()

    def check_ready(self) -> None:
        """See `Discovery`: all pipelines are known, and their links had time to come about."""
        if not self._ready:
            raise StageUnavailable(
                "links to replicas are being opened"
                if self._synced.is_set()
                else "the API server has not told yet which pipelines there are"
            )

    async def say_goodbye(self) -> None:
        """See `Discovery`."""
        await self._acknowledger.say_goodbye()

    def changed(self, kind: Watched, manifest: Manifest) -> None:
        """See `ClusterListener`."""
        name = name_of(manifest)
        try:
            self._take(kind, name, manifest)
        except SetupError as unreadable:
            self._refuse(kind, name, unreadable)
            if kind is not Watched.PIPELINES:  # One that is there serves as it did.
                self._leave_out(kind, name)
        else:
            self._refused.pop((kind, name), None)

    def deleted(self, kind: Watched, manifest: Manifest) -> None:
        """See `ClusterListener`."""
        name = name_of(manifest)
        self._leave_out(kind, name)
        self._refused.pop((kind, name), None)

    def synced(self) -> None:
        """See `ClusterListener`."""
        self._synced.set()

    def _take(self, kind: Watched, name: _Name, manifest: Manifest) -> None:
        match kind:
            case Watched.PIPELINES:
                self._take_pipeline(manifest)
            case Watched.PLANS:
                self._take_plan(name, manifest)
            case Watched.REPLICAS:
                self._take_slice(name, read_slice(manifest))

    def _take_pipeline(self, manifest: Manifest) -> None:
        seen = read_pipeline(manifest, self._gateway)
        self._catalog.direct(
            seen.key,
            seen.current,
            draining=seen.draining,
            turn=seen.turn,
            created=seen.created,
        )
        self._acknowledger.seen(seen.key, seen.uid, seen.said)

    def _take_plan(self, name: _Name, manifest: Manifest) -> None:
        uid = uid_of(manifest)
        if name in self._plans:
            if self._plans[name][0] == uid:
                return  # Seen again: plans never change.
            self._leave_out(Watched.PLANS, name)
        seen = read_plan(manifest)
        self._catalog.put(assembled(seen.plan, seen.services, self._fleet))
        self._plans[name] = uid, seen.key, seen.plan.revision

    def _take_slice(self, name: _Name, seen: SeenSlice) -> None:
        if self._services.get(name, seen.service) != seen.service:
            self._leave_out(Watched.REPLICAS, name)
        self._services[name] = seen.service
        self._slices.setdefault(seen.service, {})[name] = seen.endpoints
        self._place(seen.service)

    def _leave_out(self, kind: Watched, name: _Name) -> None:
        """It is not there, or as if it were not."""
        match kind:
            case Watched.PIPELINES:
                key = PipelineKey(namespace=name[0], name=PipelineName(name[1]))
                self._catalog.withdraw(key)
                self._acknowledger.gone(key)
            case Watched.PLANS:
                held = self._plans.pop(name, None)
                if held is not None:
                    self._catalog.drop(held[1], held[2])
            case Watched.REPLICAS:
                service = self._services.pop(name, None)
                if service is not None:
                    del self._slices[service][name]
                    self._place(service)

    def _place(self, service: ServiceKey) -> None:
        slices = self._slices[service]
        self._fleet.place(
            service, [endpoint for name in sorted(slices) for endpoint in slices[name]]
        )
        if not slices:
            del self._slices[service]

    def _refuse(self, kind: Watched, name: _Name, why: SetupError) -> None:
        if self._refused.get((kind, name)) == why.message:
            return
        self._refused[kind, name] = why.message
        self._count_refused(kind)
        _log.warning(
            "left out",
            kind=kind.value,
            object="/".join(name),
            reason=why.code,
            field=why.field,
            error=why.message,
        )

    def _said(self, key: PipelineKey, _: Acknowledgement) -> None:
        self._news.set()
        self._acknowledger.look(key)

    async def _settle(self) -> None:
        """Waits for the links of what should serve and has replicas, for a while."""
        try:
            async with asyncio.timeout(SETTLING):
                while any(_opens(pipeline) for pipeline in self._catalog.current):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            _log.warning("some replicas were not reached", seconds=SETTLING)


def _opens(pipeline: Pipeline) -> bool:
    """Whether only links are wanting: every stage has replicas, and not every one is reached."""
    return bool(pipeline.unready) and all(pool.links for pool in pipeline.pools.values())
