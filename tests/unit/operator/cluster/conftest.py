"""A fake API server per test, and the parts of the operator that talk to it, made impatient."""

from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from fakes.api_server import FakeApiServer
from omnistage_operator.cluster.api import Api, Limits
from omnistage_operator.cluster.caches import Caches
from omnistage_operator.cluster.connecting import Address, Connection, connect
from omnistage_operator.cluster.informing import WatchTimings
from omnistage_operator.control.fencing import Fence
from omnistage_operator.control.metrics import OperatorMetrics
from omnistage_operator.control.rates import BackoffRule

QUICK = Limits(
    backoff=BackoffRule(first_s=0.001, most_s=0.01), request_s=5.0, per_second=5000, burst=5000
)
PATIENCE = WatchTimings(backoff=BackoffRule(first_s=0.001, most_s=0.02))


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as fake:
        yield fake


@pytest.fixture
async def connection(server: FakeApiServer) -> AsyncIterator[Connection]:
    async with connect(Address(kubeconfig=server.kubeconfig)) as connected:
        yield connected


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> OperatorMetrics:
    return OperatorMetrics(registry)


@pytest.fixture
def fence() -> Fence:
    return Fence.always_open()


@pytest.fixture
async def api(connection: Connection, metrics: OperatorMetrics, fence: Fence) -> Api:
    return Api(
        connection,
        field_manager="omnistage-operator",
        fence=fence,
        metrics=metrics.api(),
        limits=QUICK,
    )


@pytest.fixture
def caches(api: Api, metrics: OperatorMetrics) -> Caches:
    return Caches(api, metrics=metrics, timings=PATIENCE)
