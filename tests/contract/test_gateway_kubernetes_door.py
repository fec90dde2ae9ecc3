"""A gateway's door to a cluster over real HTTP: what it watches, what it writes, what it survives."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from fakes.api_server import FakeApiServer
from fakes.fake_cluster import pipeline_manifest, plan_manifest, slice_manifest
from fakes.graphs import graph_plan
from fakes.idle_link import Links
from omnistage_common.cluster.kinds import INFERENCE_PIPELINES
from omnistage_common.cluster.manifests import Manifest, ObjectKey
from omnistage_common.errors import OmnistageError
from omnistage_common.ids import ModelName
from omnistage_gateway.discovery.cluster import ClusterDiscovery
from omnistage_gateway.discovery.kubernetes_door import connected
from omnistage_gateway.pipelines.catalog import Catalog
from omnistage_gateway.replicas.fleet import Fleet
from omnistage_gateway.settings import ClusterSource

ENOUGH_S = 20.0
OMNI = ObjectKey("default", "omni")
PLAN = graph_plan({"thinker": "conversation"}, outputs={"thinker.text": "text"}, name="omni")


class Gateway:
    """A gateway as far as it knows pipelines."""

    def __init__(self, discovery: ClusterDiscovery, catalog: Catalog) -> None:
        self.discovery = discovery
        self.catalog = catalog

    @property
    def serves(self) -> bool:
        """Whether the model can be asked."""
        try:
            self.catalog.find(ModelName("omni"))
        except OmnistageError:
            return False
        return True


@asynccontextmanager
async def following(
    server: FakeApiServer, name: str = "g-0", namespaces: tuple[str, ...] = ()
) -> AsyncIterator[Gateway]:
    """A gateway that follows a cluster over HTTP."""
    source = ClusterSource(name=name, kubeconfig=server.kubeconfig, namespaces=namespaces)
    catalog, fleet = Catalog(), Fleet(Links())
    async with connected(source, CollectorRegistry()) as cluster, fleet:
        discovery = ClusterDiscovery(cluster, catalog=catalog, fleet=fleet, gateway=name)
        await discovery.start()
        task = asyncio.create_task(discovery.run())
        try:
            yield Gateway(discovery, catalog)
        finally:
            task.cancel()
            await asyncio.wait((task,))
        await discovery.say_goodbye()


async def until(condition: Callable[[], bool]) -> None:
    """Returns when it has become true."""
    async with asyncio.timeout(ENOUGH_S):
        while not condition():  # noqa: ASYNC110 - several things are looked at, each its own way
            await asyncio.sleep(0.005)


def deploy(server: FakeApiServer, namespace: str = "default") -> None:
    """A pipeline of one replica."""
    assert namespace == PLAN.namespace
    for manifest in (
        pipeline_manifest("omni", "r", turn=1),
        plan_manifest(PLAN, {"thinker": "thinker-1"}),
        slice_manifest("thinker-1", ("thinker-1-x", 7001)),
    ):
        server.put(manifest)


def entries(server: FakeApiServer) -> list[Manifest]:
    """What gateways say of the pipeline."""
    pipeline = server.get(INFERENCE_PIPELINES, OMNI)
    assert pipeline is not None
    found: list[Manifest] = pipeline["status"].get("gateways", [])
    return found


SAID = {"name": "g-0", "turn": 1, "serving": "r", "routable": ["r"], "inUse": []}


async def test_it_serves_what_there_is_says_so_and_takes_it_back() -> None:
    async with FakeApiServer() as server:
        deploy(server)
        async with following(server) as gateway:
            await until(lambda: entries(server) == [SAID])
            assert gateway.serves
        assert entries(server) == []
        assert server.requests["patch", "inferencepipelines/status"] == 2


async def test_it_reads_and_writes_no_more_than_its_role_allows() -> None:
    async with FakeApiServer() as server:
        deploy(server)
        async with following(server):
            await until(lambda: entries(server) == [SAID])
        reads = ("inferencepipelines", "configmaps", "endpointslices")
        allowed = {(verb, kind) for kind in reads for verb in ("list", "watch")}
        allowed |= {("patch", "inferencepipelines/status"), ("create", "selfsubjectreviews")}
        assert {what for what in server.requests if what[1] != "version"} <= allowed
        (applied, *_) = [seen for seen in server.seen if seen.verb == "patch"]
        assert applied.query == {"fieldManager": "omnistage-gateway/g-0", "force": "true"}


async def test_of_config_maps_it_asks_for_plans_alone() -> None:
    async with FakeApiServer() as server:
        deploy(server)
        server.put(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "x", "namespace": "default"},
            }
        )
        async with following(server) as gateway:
            await until(lambda: gateway.serves)
            assert not gateway.discovery._refused


async def test_two_gateways_keep_apart() -> None:
    async with FakeApiServer() as server:
        deploy(server)
        async with following(server, "g-1"):
            async with following(server):
                await until(lambda: len(entries(server)) == 2)
            assert [entry["name"] for entry in entries(server)] == ["g-1"]


async def test_a_cut_watch_loses_nothing() -> None:
    async with FakeApiServer() as server:
        deploy(server)
        async with following(server) as gateway:
            await until(lambda: gateway.serves)
            server.cut_watches()
            server.remove(INFERENCE_PIPELINES, OMNI)
            await until(lambda: not gateway.serves)
            server.cut_watches()
            deploy(server)
            await until(lambda: entries(server) == [SAID])


async def test_without_a_server_it_says_what_is_wrong() -> None:
    async with FakeApiServer() as server:
        source = ClusterSource(name="g-0", kubeconfig=server.kubeconfig)
    with pytest.raises(OmnistageError):
        async with connected(source, CollectorRegistry()) as cluster:
            await cluster.check()
