"""What every source of pipelines is to the server, and how one becomes something to be asked."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Protocol

from msgspec import Struct

from omnistage_common.ids import StageName
from omnistage_common.pipeline.plan import PipelinePlan
from omnistage_gateway.media.preparing import prepare_media
from omnistage_gateway.pipelines.pipeline import Pipeline
from omnistage_gateway.replicas.endpoints import ServiceKey
from omnistage_gateway.replicas.fleet import Fleet

__all__ = ["Discovery", "StageService", "assembled"]


class Discovery(Protocol):
    """A source of pipelines and replicas, which tells catalog and fleet."""

    async def start(self) -> None:
        """Tells them what there is when the gateway starts, as far as that is known.

        Raises:
            SetupError: The gateway cannot do its work.
        """

    async def run(self) -> None:
        """Tells them what changes, until cancelled."""

    def check_ready(self) -> None:
        """Returns when this gateway should get requests.

        Raises:
            StageUnavailable: It should not yet; says what it waits for.
        """

    async def say_goodbye(self) -> None:
        """Takes back what was said of this gateway, which ends."""


class StageService(Struct, frozen=True, kw_only=True):
    """Where the replicas of one stage of a plan are found."""

    key: ServiceKey
    stage: StageName
    """What the replicas are called in metrics and messages."""


def assembled(
    plan: PipelinePlan, services: Mapping[StageName, StageService], fleet: Fleet
) -> Pipeline:
    """A revision that can be asked, with links to its replicas, until it is retired.

    Args:
        plan: What it does.
        services: Stage of the plan -> its replicas.
        fleet: Has the links.

    Raises:
        MissingDependency: What decodes or encodes its media is not installed.
    """
    prepare_media(
        frozenset(item.kind for stage in plan.stages for item in stage.consumes),
        frozenset(output.kind for output in plan.outputs),
    )
    pools = {
        stage.name: fleet.acquire(
            services[stage.name].key,
            services[stage.name].stage,
            max_running=stage.limits.max_running,
        )
        for stage in plan.stages
    }
    keys = [services[stage.name].key for stage in plan.stages]
    return Pipeline(plan, pools, partial(_release, fleet, keys))


def _release(fleet: Fleet, keys: Iterable[ServiceKey]) -> None:
    for key in keys:
        fleet.release(key)
