"""The pipelines of this gateway and their revisions, by the model names they serve.

Whoever knows the pipelines (a file, a cluster) tells the catalog: a plan is there (`put`) or gone
(`drop`), this is the revision that requests should go to (`direct`), the pipeline is gone
(`withdraw`). To a request it is one look-up. Several pipelines may claim a model name: the oldest has
it, whether it can serve now or not.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Final

from msgspec import Struct

from omnistage_common.errors import ModelNotFound, StageUnavailable
from omnistage_common.ids import ModelName, Revision
from omnistage_gateway.pipelines.deployed import Deployed
from omnistage_gateway.pipelines.pipeline import Pipeline, PipelineKey
from omnistage_gateway.pipelines.serving import Acknowledgement

__all__ = ["Catalog", "Listing"]

LONGEST_TIMEOUT: Final = 60.0
"""Seconds that a request may take where there is no pipeline that says so."""


class Listing(Struct, frozen=True, kw_only=True):
    """A model that clients may ask for."""

    name: ModelName
    created: int
    """When its pipeline was made, in seconds since the epoch."""
    pipeline: Pipeline
    """The revision that it is described by."""


class Catalog:
    """See the module.

    Attributes:
        on_change: Called when there is something new to say of a pipeline that is there.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[PipelineKey, Acknowledgement], None] | None = None
        self._serving: dict[ModelName, Pipeline] = {}
        """What requests look into."""
        self._deployed: dict[PipelineKey, Deployed] = {}
        self._claims: dict[ModelName, dict[PipelineKey, Deployed]] = {}
        self._claimed: dict[PipelineKey, tuple[ModelName, ...]] = {}
        self._said: dict[PipelineKey, Acknowledgement] = {}
        self._longest: float | None = None

    def find(self, model: ModelName) -> Pipeline:
        """The revision that serves a model.

        Raises:
            ModelNotFound: No pipeline has the name; says which names there are.
            StageUnavailable: The pipeline has no revision yet that can be reached from here.
        """
        pipeline = self._serving.get(model)
        if pipeline is None:
            raise self._unserved(model)
        return pipeline

    def listing(self, model: ModelName) -> Listing:
        """What is said of a model, whether it can be served now or not.

        Raises:
            ModelNotFound: No pipeline has the name; says which names there are.
        """
        deployed = self._owner(model)
        face = deployed.face if deployed is not None else None
        if deployed is None or face is None:
            raise self._not_found(model)
        return Listing(name=model, created=deployed.created, pipeline=face)

    @property
    def models(self) -> tuple[ModelName, ...]:
        """Names that clients may ask for."""
        return tuple(self._claims)

    @property
    def longest_timeout(self) -> float:
        """Seconds that a request may take on the pipeline that gives it most."""
        if self._longest is None:
            timeouts = (pipeline.plan.timeouts.request for pipeline in self.pipelines())
            self._longest = max(timeouts, default=LONGEST_TIMEOUT)
        return self._longest

    @property
    def longest_drain(self) -> float:
        """Seconds that running requests have when this gateway goes."""
        return max((pipeline.plan.timeouts.drain for pipeline in self.pipelines()), default=0.0)

    def pipelines(self) -> Iterator[Pipeline]:
        """Every revision that takes requests or may, or still has some."""
        for deployed in self._deployed.values():
            yield from deployed.pipelines()

    @property
    def serving(self) -> tuple[Pipeline, ...]:
        """The revisions that take new requests."""
        revisions = (deployed.serving for deployed in self._deployed.values())
        return tuple(pipeline for pipeline in revisions if pipeline is not None)

    @property
    def current(self) -> tuple[Pipeline, ...]:
        """The revisions that should."""
        revisions = (deployed.current for deployed in self._deployed.values())
        return tuple(pipeline for pipeline in revisions if pipeline is not None)

    def acknowledgement(self, key: PipelineKey) -> Acknowledgement | None:
        """What there is to say of a pipeline; None when it is not there."""
        return self._said.get(key)

    def put(self, pipeline: Pipeline) -> None:
        """A revision's plan is there. One that is known stays as it is, since plans never change."""
        self._known(pipeline.key).put(pipeline)

    def drop(self, key: PipelineKey, revision: Revision) -> None:
        """A revision's plan is gone; requests that are on it stay to their end."""
        if key in self._deployed:
            self._deployed[key].drop(revision)

    def direct(
        self,
        key: PipelineKey,
        current: Revision | None,
        *,
        draining: Collection[Revision] = (),
        turn: int = 0,
        created: int = 0,
    ) -> None:
        """A pipeline is there.

        Args:
            key: Which.
            current: The revision that new requests should go to; None when that is not known yet.
            draining: Revisions that must take no new requests.
            turn: How often the current revision has changed.
            created: When it was made, in seconds since the epoch.
        """
        self._known(key).direct(current, draining=draining, turn=turn, created=created)

    def withdraw(self, key: PipelineKey) -> None:
        """A pipeline is gone; requests that are on it stay to their end."""
        if key in self._deployed:
            self._deployed[key].withdraw()

    def _known(self, key: PipelineKey) -> Deployed:
        deployed = self._deployed.get(key)
        if deployed is None:
            deployed = self._deployed[key] = Deployed(key, self._changed)
        return deployed

    def _changed(self, deployed: Deployed) -> None:
        key = deployed.key
        self._longest = None
        self._claim(deployed)
        if not deployed.present:
            self._said.pop(key, None)
        elif self._said.get(key) != deployed.acknowledgement:
            said = self._said[key] = deployed.acknowledgement
            if self.on_change is not None:
                self.on_change(key, said)
        if deployed.empty:
            self._deployed.pop(key, None)

    def _claim(self, deployed: Deployed) -> None:
        """Gives each model name that a pipeline has, or had, to whom it belongs now."""
        key, face = deployed.key, deployed.face
        had = self._claimed.pop(key, ())
        has = face.plan.served_names if face is not None else ()
        if has:
            self._claimed[key] = has
        for model in had:
            if model not in has:
                del self._claims[model][key]
        for model in has:
            self._claims.setdefault(model, {})[key] = deployed
        for model in dict.fromkeys((*had, *has)):
            owner = self._owner(model)
            if owner is None:
                self._claims.pop(model, None)
            if owner is None or owner.serving is None:
                self._serving.pop(model, None)
            else:
                self._serving[model] = owner.serving

    def _owner(self, model: ModelName) -> Deployed | None:
        claims = self._claims.get(model)
        return min(claims.values(), key=lambda each: each.age) if claims else None

    def _unserved(self, model: ModelName) -> ModelNotFound | StageUnavailable:
        deployed = self._owner(model)
        if deployed is None:
            return self._not_found(model)
        if deployed.current is not None:
            try:
                deployed.current.check_routable()
            except StageUnavailable as why:
                return why
        return StageUnavailable(
            f"no revision of pipeline {deployed.key} can serve `{model}` yet; try again soon"
        )

    def _not_found(self, model: ModelName) -> ModelNotFound:
        there = ", ".join(self.models) or "none yet"
        return ModelNotFound(
            f"the model `{model}` is not served here; there are: {there}", field="model"
        )
