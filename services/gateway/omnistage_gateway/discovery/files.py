"""One pipeline and its replicas, as two files name them when the gateway starts; nothing changes."""

import asyncio
import time
from collections.abc import Iterable

from omnistage_common.errors import SetupError, StageUnavailable
from omnistage_common.pipeline.plan import PipelinePlan
from omnistage_gateway.discovery.source import StageService, assembled
from omnistage_gateway.pipelines.catalog import Catalog
from omnistage_gateway.replicas.endpoints import ReplicaEndpoint, ServiceKey
from omnistage_gateway.replicas.fleet import Fleet

__all__ = ["FileDiscovery"]


class FileDiscovery:
    """See the module.

    Raises:
        SetupError: An endpoint belongs to a stage that the plan does not have.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        endpoints: Iterable[ReplicaEndpoint],
        *,
        catalog: Catalog,
        fleet: Fleet,
    ) -> None:
        self._plan = plan
        self._endpoints = tuple(endpoints)
        self._catalog = catalog
        self._fleet = fleet
        known = {stage.name for stage in plan.stages}
        for endpoint in self._endpoints:
            if endpoint.stage not in known:
                raise SetupError(
                    f"endpoint {endpoint.replica} is of stage {endpoint.stage!r}, which"
                    f" {plan.name} does not have",
                    field="--endpoints",
                )

    async def start(self) -> None:
        """See `Discovery`.

        Raises:
            MissingDependency: What decodes or encodes the pipeline's media is not installed.
        """
        services = {
            stage.name: StageService(key=ServiceKey(name=stage.name), stage=stage.name)
            for stage in self._plan.stages
        }
        for name, service in services.items():
            here = [endpoint for endpoint in self._endpoints if endpoint.stage == name]
            self._fleet.place(service.key, here)
        pipeline = assembled(self._plan, services, self._fleet)
        self._catalog.put(pipeline)
        self._catalog.direct(pipeline.key, pipeline.revision, created=int(time.time()))

    async def run(self) -> None:
        """See `Discovery`: nothing changes."""
        await asyncio.Event().wait()

    def check_ready(self) -> None:
        """See `Discovery`: every stage has a ready replica."""
        unready = {
            pipeline.plan.name: pipeline.unready
            for pipeline in self._catalog.pipelines()
            if pipeline.unready
        }
        if unready:
            reasons = "; ".join(f"{name}: {', '.join(stages)}" for name, stages in unready.items())
            raise StageUnavailable(f"stages without a ready replica: {reasons}")

    async def say_goodbye(self) -> None:
        """See `Discovery`: nobody listens."""
