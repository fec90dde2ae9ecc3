"""One pipeline and all its revisions at this gateway: does what `Serving` decides.

It holds the revisions whose plans are there, and those whose plans are gone while requests are still
on them. It looks at the stages of each revision whenever they become ready or are no more, and tells
its owner after everything that happens.
"""

from collections.abc import Callable, Collection, Iterator
from functools import partial

from omnistage_common.ids import Revision
from omnistage_gateway.pipelines.pipeline import Pipeline, PipelineKey
from omnistage_gateway.pipelines.serving import Acknowledgement, Serving

__all__ = ["Deployed"]


class Deployed:
    """See the module.

    Args:
        key: Which pipeline.
        changed: Called after everything that may have changed what is said here.
    """

    def __init__(self, key: PipelineKey, changed: Callable[["Deployed"], None]) -> None:
        self.key = key
        self.created = 0
        """When the pipeline was made, in seconds since the epoch."""
        self.present = False
        """Whether the pipeline itself is there; plans may come before it and outlive it."""
        self.serving: Pipeline | None = None
        """The revision that takes new requests."""
        self._changed = changed
        self._machine = Serving()
        self._revisions: dict[Revision, Pipeline] = {}
        self._lingering: set[Pipeline] = set()
        """Those whose plan is gone, and whose requests are not."""
        self._watchers: dict[Revision, Callable[[], None]] = {}

    @property
    def current(self) -> Pipeline | None:
        """The revision that should serve, when its plan is there."""
        current = self._machine.current
        return self._revisions.get(current) if current is not None else None

    @property
    def face(self) -> Pipeline | None:
        """The revision that says what the pipeline is called and can do; None when it is not there."""
        if not self.present:
            return None
        return self.serving or self.current or next(iter(self._revisions.values()), None)

    @property
    def age(self) -> tuple[int, PipelineKey]:
        """Sorts pipelines, the oldest first."""
        return self.created, self.key

    @property
    def acknowledgement(self) -> Acknowledgement:
        """What there is to say of it."""
        return self._machine.acknowledgement

    @property
    def empty(self) -> bool:
        """Whether nothing of it is left."""
        return not (self.present or self._revisions or self._lingering)

    def pipelines(self) -> Iterator[Pipeline]:
        """Every revision that takes requests or may, or still has some."""
        yield from self._revisions.values()
        yield from self._lingering

    def put(self, pipeline: Pipeline) -> None:
        """A plan is there. One that is known stays as it is, since plans never change."""
        revision = pipeline.revision
        if revision in self._revisions:
            pipeline.retire()
            return
        self._revisions[revision] = pipeline
        watcher = self._watchers[revision] = partial(self._look, pipeline)
        for pool in set(pipeline.pools.values()):
            pool.watch(watcher)
        self._look(pipeline)

    def drop(self, revision: Revision) -> None:
        """A plan is gone; requests that are on it stay to their end."""
        pipeline = self._revisions.get(revision)
        if pipeline is None:
            return
        watcher = self._watchers.pop(revision)
        for pool in set(pipeline.pools.values()):
            pool.unwatch(watcher)
        self._machine.forget(revision)
        self._settle()
        del self._revisions[revision]
        if pipeline.requests:
            self._lingering.add(pipeline)
            self._outlast(pipeline)
        pipeline.retire()
        self._changed(self)

    def direct(
        self, current: Revision | None, *, draining: Collection[Revision], turn: int, created: int
    ) -> None:
        """The pipeline is there; see `Catalog.direct`."""
        self.present, self.created = True, created
        self._machine.direct(current, draining=draining, turn=turn)
        self._settle()

    def withdraw(self) -> None:
        """The pipeline is gone."""
        self.present = False
        self._changed(self)

    def _look(self, pipeline: Pipeline) -> None:
        self._machine.learn(pipeline.revision, routable=not pipeline.unready)
        self._settle()

    def _settle(self) -> None:
        """Follows what the machine has decided."""
        served, chosen = self.serving, self._machine.serving
        self.serving = self._revisions[chosen] if chosen is not None else None
        if served is not self.serving:
            if served is not None and served.requests:
                self._outlast(served)
            if self.serving is not None:
                self.serving.on_idle = None
                self._machine.occupy(self.serving.revision, busy=False)
        self._changed(self)

    def _outlast(self, pipeline: Pipeline) -> None:
        """Waits for the last request of a revision that takes no new ones."""
        pipeline.on_idle = partial(self._idle, pipeline)
        self._machine.occupy(pipeline.revision, busy=True)

    def _idle(self, pipeline: Pipeline) -> None:
        """The last request has left a revision that does not serve."""
        pipeline.on_idle = None
        self._lingering.discard(pipeline)
        others = (
            other.requests
            for other in self.pipelines()
            if other.revision == pipeline.revision and other is not self.serving
        )
        self._machine.occupy(pipeline.revision, busy=any(others))
        self._changed(self)
