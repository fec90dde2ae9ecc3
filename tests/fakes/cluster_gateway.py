"""A gateway in this process that follows a fake cluster: real links, real application, no sockets of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from prometheus_client import CollectorRegistry

from fakes.fake_cluster import FakeCluster
from fakes.raw_client import PATH, question
from omnistage_common.ids import new_incarnation, this_host
from omnistage_common.tensors import TensorPlane
from omnistage_gateway.admission import Admission
from omnistage_gateway.app import build_app
from omnistage_gateway.discovery.cluster import ClusterDiscovery
from omnistage_gateway.endpoints.exchange import Services
from omnistage_gateway.metrics import GatewayMetrics
from omnistage_gateway.pipelines.catalog import Catalog
from omnistage_gateway.replicas.fleet import Fleet
from omnistage_gateway.tensor_planes import TensorPlanes

__all__ = ["ClusterGateway", "cluster_gateway"]

_ENOUGH_S = 20.0


class ClusterGateway:
    """See the module."""

    def __init__(self, cluster: FakeCluster, folder: Path, name: str) -> None:
        self.catalog = Catalog()
        self.fleet = Fleet()
        self.planes = TensorPlanes(
            lambda transports: TensorPlane(
                incarnation=new_incarnation(),
                host=this_host(),
                slab_bytes=1 << 20,
                directory=folder,
                transports=transports,
            )
        )
        self.discovery = ClusterDiscovery(
            cluster.door(name), catalog=self.catalog, fleet=self.fleet, gateway=name
        )
        admission = Admission(max_requests=1000, max_body_bytes=1 << 20, body_budget_bytes=1 << 30)
        registry = CollectorRegistry()
        services = Services(
            catalog=self.catalog,
            admission=admission,
            planes=self.planes,
            metrics=GatewayMetrics(registry, admission=admission, catalog=self.catalog),
        )
        app = build_app(services, registry, check_ready=self.discovery.check_ready)
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://gateway", timeout=_ENOUGH_S
        )

    async def ask(self, model: str) -> tuple[int, str]:
        """Status of a chat request, and the words of its answer."""
        answer = await self.http.post(PATH, json=question(model))
        if answer.status_code != httpx.codes.OK:
            return answer.status_code, answer.text
        content: str = answer.json()["choices"][0]["message"]["content"]
        return answer.status_code, content

    async def ready(self) -> None:
        """Returns when `/readyz` says that it is."""
        async with asyncio.timeout(_ENOUGH_S):
            while not await self._is_ready():  # noqa: ASYNC110 - as a kubelet asks
                await asyncio.sleep(0.005)

    async def _is_ready(self) -> bool:
        return (await self.http.get("/readyz")).status_code == httpx.codes.OK


@asynccontextmanager
async def cluster_gateway(
    cluster: FakeCluster, folder: Path, name: str = "gateway-0"
) -> AsyncIterator[ClusterGateway]:
    """A gateway that is ready, ended with the context; nothing of its requests may be left."""
    gateway = ClusterGateway(cluster, folder, name)
    async with gateway.http, gateway.fleet:
        await gateway.discovery.start()
        following = asyncio.create_task(gateway.discovery.run(), name="discovery")
        try:
            await gateway.ready()
            yield gateway
            assert all(link.idle for link in gateway.fleet.links)
            assert not any(pipeline.requests for pipeline in gateway.catalog.pipelines())
        finally:
            following.cancel()
            await asyncio.wait((following,))
            gateway.planes.close()
