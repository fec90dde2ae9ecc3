"""The pipelines of this gateway, by the model names they serve."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from omnistage_common.errors import ModelNotFound
from omnistage_common.ids import ModelName, StageName
from omnistage_common.pipeline.plan import PipelinePlan
from omnistage_gateway.pipelines.abilities import Abilities
from omnistage_gateway.pipelines.routing import Routes
from omnistage_gateway.replicas.pool import StagePool

__all__ = ["Catalog", "Pipeline"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """A pipeline that can be asked."""

    plan: PipelinePlan
    routes: Routes
    pools: Mapping[StageName, StagePool]
    abilities: Abilities = field(init=False)

    def __post_init__(self) -> None:
        """Works out what the plan can do."""
        object.__setattr__(self, "abilities", Abilities.of(self.plan))

    @property
    def unready(self) -> tuple[StageName, ...]:
        """Stages without a ready replica."""
        return tuple(name for name, pool in self.pools.items() if not pool.ready)


class Catalog:
    """Finds the pipeline of a model."""

    def __init__(self, pipelines: Iterable[Pipeline]) -> None:
        self.pipelines = tuple(pipelines)
        self._by_model = {
            name: pipeline for pipeline in self.pipelines for name in pipeline.plan.served_names
        }

    @property
    def longest_timeout(self) -> float:
        """Seconds that a request may take on the pipeline that gives it most."""
        return max(pipeline.plan.timeouts.request for pipeline in self.pipelines)

    @property
    def models(self) -> tuple[ModelName, ...]:
        """Names that clients may ask for."""
        return tuple(self._by_model)

    def find(self, model: ModelName) -> Pipeline:
        """The pipeline that serves a model.

        Raises:
            ModelNotFound: None does; names those that are served.
        """
        try:
            return self._by_model[model]
        except KeyError:
            raise ModelNotFound(
                f"the model `{model}` is not served here; there are: {', '.join(self.models)}",
                field="model",
            ) from None
