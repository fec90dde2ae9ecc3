"""`omnistage-gateway --cluster` as a process, before an API server and replicas of this process."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from fakes.api_server import FakeApiServer
from fakes.deployment import Service
from fakes.echo_replica import EchoReplica
from fakes.fake_cluster import pipeline_manifest, plan_manifest, slice_manifest
from fakes.graphs import graph_plan
from fakes.raw_client import PATH, question
from fakes.stage_process import free_port
from omnistage_common.cluster.kinds import INFERENCE_PIPELINES
from omnistage_common.cluster.manifests import Manifest, ObjectKey
from omnistage_common.ids import Revision

OMNI = ObjectKey("default", "omni")
PLAN = graph_plan({"thinker": "conversation"}, outputs={"thinker.text": "text"}, name="omni")
ENOUGH_S = 60.0


class World:
    """An API server, replicas, and a gateway process."""

    def __init__(self, server: FakeApiServer, folder: Path, stack: AsyncExitStack) -> None:
        self.server = server
        self.replicas: dict[str, EchoReplica] = {}
        self._stack = stack
        port = free_port()
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=ENOUGH_S)
        self.gateway = Service(
            "gateway-0",
            (
                "omnistage_gateway",
                *("--cluster", "--name", "gateway-0", "--kubeconfig", str(server.kubeconfig)),
                *("--listen", f"127.0.0.1:{port}", "--leave-after", "0.3"),
            ),
            folder / "gateway.log",
        )

    async def deploy(self, revision: str, *, turn: int) -> None:
        """Makes a revision of one replica, and makes it current."""
        replica = self.replicas[revision] = EchoReplica(revision)
        await replica.start()
        self._stack.push_async_callback(replica.stop)
        service = f"thinker-{revision}"
        self.server.put(slice_manifest(service, (f"{service}-x", replica.port)))
        self.server.put(
            plan_manifest(replace(PLAN, revision=Revision(revision)), {"thinker": service})
        )
        pipeline = pipeline_manifest("omni", revision, turn=turn)
        there = self.server.get(INFERENCE_PIPELINES, OMNI)
        if there is not None:
            pipeline = {**there, "status": {**there["status"], **pipeline["status"]}}
        self.server.put(pipeline)

    async def ask(self) -> str:
        """The answer to a question."""
        answer = await self.http.post(PATH, json=question("omni"))
        assert answer.status_code == 200, answer.text
        content: str = answer.json()["choices"][0]["message"]["content"]
        return content

    async def is_ready(self) -> bool:
        """Whether `/readyz` says so."""
        self.gateway.check_alive()
        try:
            return (await self.http.get("/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    @property
    def said(self) -> list[Manifest]:
        """What stands in the pipeline's status."""
        pipeline = self.server.get(INFERENCE_PIPELINES, OMNI)
        assert pipeline is not None
        entries: list[Manifest] = pipeline["status"].get("gateways", [])
        return entries


async def until(condition: Callable[[], bool]) -> None:
    """Returns when it has become true."""
    async with asyncio.timeout(ENOUGH_S):
        while not condition():  # noqa: ASYNC110 - several things are looked at, each its own way
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[World]:
    """A gateway process that is ready."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(FakeApiServer())
        world = World(server, folder, stack)
        await stack.enter_async_context(world.http)
        await world.deploy("a", turn=1)
        stack.push_async_callback(asyncio.to_thread, world.gateway.close)
        world.gateway.start()
        async with asyncio.timeout(ENOUGH_S):
            while not await world.is_ready():  # noqa: ASYNC110 - as a kubelet asks
                await asyncio.sleep(0.02)
        yield world


async def test_it_serves_rolls_and_leaves(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        assert await world.ask() == "a"
        await until(lambda: [entry.get("serving") for entry in world.said] == ["a"])

        await world.deploy("b", turn=2)
        await until(lambda: [entry.get("serving") for entry in world.said] == ["b"])
        assert await world.ask() == "b"
        assert world.said[0]["turn"] == 2

        world.gateway.terminate()
        assert await world.ask() == "b"
        assert await asyncio.to_thread(world.gateway.wait) == 0
        assert world.said == []
        assert world.gateway.segments() == []


async def test_it_serves_on_while_the_api_server_is_away(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await world.server.__aexit__(None, None, None)
        for _ in range(20):
            assert await world.ask() == "a"
            await asyncio.sleep(0.02)
        assert await world.is_ready()

        world.gateway.terminate()
        assert await asyncio.to_thread(world.gateway.wait) == 0


@pytest.mark.parametrize("kubeconfig", ["there", "not there"])
async def test_without_an_api_server_it_says_so_and_ends(tmp_path: Path, kubeconfig: str) -> None:
    path = tmp_path / "kubeconfig"
    if kubeconfig == "there":
        async with FakeApiServer() as server:
            path.write_bytes(server.kubeconfig.read_bytes())
    gateway = Service(
        "gateway",
        (
            "omnistage_gateway",
            *("--cluster", "--name", "g", "--kubeconfig", str(path)),
            *("--listen", f"127.0.0.1:{free_port()}"),
        ),
        tmp_path / "gateway.log",
    )
    gateway.start()

    assert await asyncio.to_thread(gateway.wait) == 3
    last = json.loads(gateway.log.splitlines()[-1])
    assert (last["event"], last["level"]) == ("cannot start", "error")
