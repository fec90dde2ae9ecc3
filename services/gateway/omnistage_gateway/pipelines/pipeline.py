"""One revision of a pipeline, as a request has it from its first to its last byte.

A request enters the revision that serves when it comes and leaves it when it has ended; whatever is
rolled out meanwhile, its plan, routes and pools stay those. What belongs to the revision is let go
when it serves no more and the last request has left.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct

from omnistage_common.ids import PipelineName, Revision, StageName
from omnistage_common.pipeline.plan import PipelinePlan
from omnistage_gateway.pipelines.abilities import Abilities
from omnistage_gateway.pipelines.routing import Routes
from omnistage_gateway.replicas.pool import StagePool

__all__ = ["Pipeline", "PipelineKey"]


class PipelineKey(Struct, frozen=True, kw_only=True, order=True):
    """Which pipeline, whatever its revision."""

    namespace: str
    name: PipelineName

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Pipeline:
    """A revision of a pipeline that can be asked.

    Args:
        plan: What it does.
        pools: Stage -> its replicas.
        let_go: Called once, when nobody needs the pools any more.
    """

    __slots__ = (
        "_let_go",
        "_retired",
        "abilities",
        "key",
        "label",
        "on_idle",
        "plan",
        "pools",
        "requests",
        "routes",
    )

    def __init__(
        self,
        plan: PipelinePlan,
        pools: Mapping[StageName, StagePool],
        let_go: Callable[[], None] | None = None,
    ) -> None:
        self.plan = plan
        self.pools = pools
        self.key = PipelineKey(namespace=plan.namespace, name=plan.name)
        self.label = str(self.key)
        """What it is called in metrics."""
        self.routes = Routes(plan)
        self.abilities = Abilities.of(plan)
        self.requests = 0
        """Requests inside."""
        self.on_idle: Callable[[], None] | None = None
        """Called whenever the last request has left."""
        self._let_go = let_go
        self._retired = False

    @property
    def revision(self) -> Revision:
        """Its revision."""
        return self.plan.revision

    @property
    def unready(self) -> tuple[StageName, ...]:
        """Stages without a ready replica."""
        return tuple(name for name, pool in self.pools.items() if not pool.ready)

    def check_routable(self) -> None:
        """Returns when every stage has a ready replica.

        Raises:
            StageUnavailable: One has none; says why.
        """
        for pool in self.pools.values():
            pool.check_ready()

    def enter(self) -> None:
        """A request begins."""
        self.requests += 1

    def leave(self) -> None:
        """A request has ended."""
        self.requests -= 1
        if not self.requests:
            self._emptied()

    def retire(self) -> None:
        """Lets go of the pools as soon as no request is inside; there will be no new ones."""
        self._retired = True
        if not self.requests:
            self._emptied()

    def _emptied(self) -> None:
        if self.on_idle is not None:
            self.on_idle()
        if self._retired and self._let_go is not None:
            let_go, self._let_go = self._let_go, None
            let_go()
