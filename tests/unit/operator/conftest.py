"""A fake API server per test, and the parts that talk to it, made impatient."""

import pytest
from prometheus_client import CollectorRegistry

from fakes.api_fixtures import PATIENCE, QUICK, connection, fence, registry, server
from omnistage_common.cluster.api import Api
from omnistage_common.cluster.caches import Caches
from omnistage_common.cluster.connecting import Connection
from omnistage_common.cluster.fencing import Fence
from omnistage_operator.control.metrics import OperatorMetrics

__all__ = ["connection", "fence", "registry", "server"]


@pytest.fixture
def metrics(registry: CollectorRegistry) -> OperatorMetrics:
    return OperatorMetrics(registry)


@pytest.fixture
async def api(
    connection: Connection,
    metrics: OperatorMetrics,
    fence: Fence,
) -> Api:
    return Api(
        connection,
        field_manager="omnistage-operator",
        fence=fence,
        metrics=metrics.cluster.api(),
        limits=QUICK,
    )


@pytest.fixture
def caches(api: Api, metrics: OperatorMetrics) -> Caches:
    return Caches(api, metrics=metrics.cluster, timings=PATIENCE)
