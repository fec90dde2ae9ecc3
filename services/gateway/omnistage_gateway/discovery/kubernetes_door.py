"""The `Cluster` of a gateway that is one: informers and server-side apply, by the shared core.

Nothing here knows what an object means. A pipeline that is gone is an answer; every other trouble is
the caller's, who tries again, or the informers', who mend themselves.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry

from omnistage_common.cluster.api import Api
from omnistage_common.cluster.caches import Caches
from omnistage_common.cluster.connecting import Address, connect
from omnistage_common.cluster.errors import ObjectNotFound
from omnistage_common.cluster.fencing import Fence
from omnistage_common.cluster.informing import WatchOptions
from omnistage_common.cluster.kinds import CONFIG_MAPS, ENDPOINT_SLICES, INFERENCE_PIPELINES
from omnistage_common.cluster.metrics import ClusterMetrics
from omnistage_common.pipeline.published import PLAN_LABEL, STAGE_LABEL, gateway_manager
from omnistage_gateway.discovery.cluster_door import ClusterListener, Manifest, Watched
from omnistage_gateway.settings import ClusterSource

__all__ = ["KubernetesCluster", "connected"]


class KubernetesCluster:
    """See the module.

    Args:
        api: The API server, with the field manager of this gateway.
        namespaces: Those to look at; none for all.
        metrics: Where to count.
    """

    def __init__(self, api: Api, namespaces: Iterable[str], metrics: ClusterMetrics) -> None:
        self._api = api
        self._caches = Caches(api, metrics=metrics, namespaces=namespaces)
        self._informers = {
            Watched.PIPELINES: self._caches.watch(INFERENCE_PIPELINES),
            Watched.PLANS: self._caches.watch(CONFIG_MAPS, WatchOptions(labels=PLAN_LABEL)),
            Watched.REPLICAS: self._caches.watch(ENDPOINT_SLICES, WatchOptions(labels=STAGE_LABEL)),
        }

    async def check(self) -> None:
        """See `Cluster`."""
        await self._api.check()

    async def watch(self, listener: ClusterListener) -> None:
        """See `Cluster`. To be called once."""
        for kind, informer in self._informers.items():
            informer.on_change(partial(_tell, listener, kind))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._caches.run(), name="informers")
            await self._caches.wait_synced()
            listener.synced()

    async def apply_status(self, manifest: Manifest) -> bool:
        """See `Cluster`."""
        try:
            await self._api.apply_status(dict(manifest), INFERENCE_PIPELINES)
        except ObjectNotFound:
            return False
        return True


def _tell(
    listener: ClusterListener,
    kind: Watched,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
) -> None:
    if after is not None:
        listener.changed(kind, after)
    elif before is not None:
        listener.deleted(kind, before)


@asynccontextmanager
async def connected(
    source: ClusterSource, registry: CollectorRegistry
) -> AsyncIterator[KubernetesCluster]:
    """A connection to the cluster of a gateway, closed at the end of the context.

    Args:
        source: Which gateway, and what it looks at.
        registry: Where to count.

    Raises:
        SetupError: No way to an API server is configured.
    """
    metrics = ClusterMetrics(registry)
    async with connect(Address(kubeconfig=source.kubeconfig)) as connection:
        api = Api(
            connection,
            field_manager=gateway_manager(source.name),
            fence=Fence.always_open(),
            metrics=metrics.api(),
        )
        yield KubernetesCluster(api, source.namespaces, metrics)
