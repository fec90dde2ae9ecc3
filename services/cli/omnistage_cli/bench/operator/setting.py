"""Puts a run's objects into the cluster and takes them out again, whatever happened in between."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from prometheus_client import CollectorRegistry

from omnistage_cli.bench.operator.scene import NAMESPACES, Scene
from omnistage_common.cluster.api import Api
from omnistage_common.cluster.informing import Informer, WatchOptions
from omnistage_common.cluster.kinds import PIPELINE_TEMPLATES, PODS, STAGE_RUNTIMES, ResourceKind
from omnistage_common.cluster.manifests import Manifest, key_of, uid_of
from omnistage_common.cluster.metrics import ClusterMetrics
from omnistage_common.errors import ServerError

__all__ = ["standing"]

_GONE_SECONDS: Final = 900.0
"""For a namespace to go with everything in it: the API server deletes object by object."""


@asynccontextmanager
async def standing(api: Api, scene: Scene, *, removing: Callable[[], None]) -> AsyncIterator[None]:
    """Namespaces, template, runtime and the gateway's pod are there while the context lasts.

    Nodes must outlast it, for somebody has to end the pods.

    Args:
        api: The way to the API server.
        scene: What to put there.
        removing: Called before everything is removed.

    Raises:
        ServerError: A namespace does not go.
    """
    made: list[tuple[ResourceKind, Manifest]] = []
    try:
        for kind, manifest in (
            *((NAMESPACES, each) for each in scene.namespaces()),
            (PIPELINE_TEMPLATES, scene.template()),
            (STAGE_RUNTIMES, scene.runtime()),
        ):
            made.append((kind, await api.apply(manifest, kind)))
        await api.apply(scene.gateway_pod(), PODS)
        yield
    finally:
        removing()
        for kind, manifest in reversed(made):
            await api.delete(kind, key_of(manifest), uid=uid_of(manifest))
        await _until_gone(api, scene)


async def _until_gone(api: Api, scene: Scene) -> None:
    """Returns once the run's namespaces are gone, and with them all that was in them."""
    informer = Informer(
        api=api,
        kind=NAMESPACES,
        options=WatchOptions(labels=scene.chosen),
        metrics=ClusterMetrics(CollectorRegistry()).cache(str(NAMESPACES)),
    )
    gone = asyncio.Event()
    informer.on_change(lambda *_: None if tuple(informer.store.all()) else gone.set())
    try:
        async with asyncio.timeout(_GONE_SECONDS), asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(informer.run())
            await informer.synced.wait()
            if tuple(informer.store.all()):
                await gone.wait()
            watching.cancel()
    except TimeoutError as late:
        raise ServerError(
            f"the namespaces of the run do not go; `kubectl get namespaces --selector={scene.chosen}"
            " --output=yaml` says why"
        ) from late
