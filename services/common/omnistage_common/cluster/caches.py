"""The informers of a process: each kind once, shared by all controllers."""

import asyncio
from collections.abc import Iterable

from omnistage_common.cluster.api import Api
from omnistage_common.cluster.informing import Informer, WatchOptions, WatchTimings
from omnistage_common.cluster.kinds import ResourceKind
from omnistage_common.cluster.manifests import Manifest
from omnistage_common.cluster.metrics import ClusterMetrics
from omnistage_common.cluster.store import Store
from omnistage_common.errors import SetupError

__all__ = ["Caches"]


class Caches:
    """Ask for every kind first, then run."""

    def __init__(
        self,
        api: Api,
        *,
        metrics: ClusterMetrics,
        namespaces: Iterable[str] = (),
        timings: WatchTimings | None = None,
    ) -> None:
        """Holds nothing yet.

        Args:
            api: The way to the API server.
            metrics: Where to count.
            namespaces: Of which namespaces to keep objects; none for all.
            timings: How patiently to watch.
        """
        self._api = api
        self._metrics = metrics
        self._namespaces = tuple(namespaces)
        self._timings = timings
        self._informers: dict[ResourceKind, Informer] = {}
        self._running = False

    def watch(self, kind: ResourceKind, options: WatchOptions | None = None) -> Informer:
        """The informer of a kind; the first to ask says what of it is kept.

        Raises:
            SetupError: The kind is kept in another way already, or the caches run already.
        """
        known = self._informers.get(kind)
        if known is not None:
            if options is not None and options != known.options:
                raise SetupError(f"{kind} is watched with other options already; agree on one")
            return known
        if self._running:
            raise SetupError(f"{kind} is asked for after the start; ask for it before")
        informer = Informer(
            api=self._api,
            kind=kind,
            namespaces=self._namespaces,
            options=options,
            timings=self._timings,
            metrics=self._metrics.cache(str(kind)),
        )
        self._informers[kind] = informer
        return informer

    def store(self, kind: ResourceKind) -> Store:
        """The objects of a kind that is watched.

        Raises:
            KeyError: It is not.
        """
        return self._informers[kind].store

    def find(self, kind: ResourceKind) -> Informer | None:
        """The informer of a kind, None when it is not watched."""
        return self._informers.get(kind)

    def observe(self, manifest: Manifest, kind: ResourceKind) -> None:
        """Takes in the answer to a write, if the kind is watched."""
        informer = self._informers.get(kind)
        if informer is not None:
            informer.observe(manifest)

    async def run(self) -> None:
        """Keeps every kind until cancelled."""
        self._running = True
        async with asyncio.TaskGroup() as tasks:
            for kind, informer in self._informers.items():
                tasks.create_task(informer.run(), name=f"informer {kind}")

    async def wait_synced(self) -> None:
        """Returns once every kind was listed."""
        for informer in self._informers.values():
            await informer.synced.wait()

    @property
    def is_synced(self) -> bool:
        """Whether every kind was listed."""
        return all(informer.synced.is_set() for informer in self._informers.values())

    def stalest(self) -> float:
        """Seconds since the quietest watch gave a sign; 0 when nothing is watched."""
        return max((each.seconds_since_sign() for each in self._informers.values()), default=0.0)
