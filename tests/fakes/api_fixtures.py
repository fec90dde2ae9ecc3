"""Fixtures around the fake API server, for every folder whose tests talk to it."""

from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from fakes.api_server import FakeApiServer
from omnistage_common.cluster.api import Limits
from omnistage_common.cluster.connecting import Address, Connection, connect
from omnistage_common.cluster.fencing import Fence
from omnistage_common.cluster.informing import WatchTimings
from omnistage_common.cluster.rates import BackoffRule

__all__ = ["PATIENCE", "QUICK", "connection", "fence", "registry", "server"]

QUICK = Limits(
    backoff=BackoffRule(first_s=0.001, most_s=0.01), request_s=5.0, per_second=5000, burst=5000
)
PATIENCE = WatchTimings(backoff=BackoffRule(first_s=0.001, most_s=0.02))


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    """A fake API server of the test's own."""
    async with FakeApiServer() as fake:
        yield fake


@pytest.fixture
async def connection(server: FakeApiServer) -> AsyncIterator[Connection]:
    """A way to it."""
    async with connect(Address(kubeconfig=server.kubeconfig)) as connected:
        yield connected


@pytest.fixture
def registry() -> CollectorRegistry:
    """Where figures are counted."""
    return CollectorRegistry()


@pytest.fixture
def fence() -> Fence:
    """A fence that lets every write through."""
    return Fence.always_open()
