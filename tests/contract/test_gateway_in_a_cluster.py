"""A gateway that follows a cluster under constant load: what rolls, comes and goes fails nobody.

The links are real, so are the replicas' ends of them; the API server is in memory.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.cluster_gateway import ClusterGateway, cluster_gateway
from fakes.echo_replica import EchoReplica
from fakes.fake_cluster import FakeCluster, pipeline_manifest, plan_manifest, slice_manifest
from fakes.graphs import graph_plan
from omnistage_common.ids import ModelName, PipelineName, Revision
from omnistage_common.pipeline.plan import PipelinePlan

CLIENTS = 8
ENOUGH_S = 20.0
OMNI = graph_plan(
    {"thinker": "conversation", "speaker": ""},
    "thinker.hidden speaker",
    outputs={"speaker.text": "text"},
    name="omni",
)


def revised(revision: str, name: str = "omni") -> PipelinePlan:
    """A revision of a pipeline of two stages, the second of which says which way it came."""
    return replace(
        OMNI,
        revision=Revision(revision),
        name=PipelineName(name),
        served_names=(ModelName(name),),
    )


class World:
    """A cluster and its replicas."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.cluster = FakeCluster()
        self.replicas: dict[str, EchoReplica] = {}
        self._stack = stack

    async def start(self, pod: str, *, output: str = "text") -> EchoReplica:
        """Starts a replica, which nobody knows of yet."""
        replica = self.replicas[pod] = EchoReplica(pod, output)
        await replica.start()
        self._stack.push_async_callback(replica.stop)
        return replica

    @property
    def said(self) -> dict[str, Any]:
        """What the first gateway says of the pipeline; empty when none has yet."""
        return next(iter(self.cluster.entries("omni")), {})

    def slice(self, service: str, *pods: str, **conditions: bool) -> dict[str, Any]:
        """The replicas of a service, one slice each as their ports differ; the first one's."""
        return slice_manifest(
            service,
            *((pod, self.replicas[pod].port) for pod in pods),
            part=pods[0],
            conditions=conditions,
        )

    async def deploy(
        self, revision: str, *, thinker: str, speaker: str, name: str = "omni"
    ) -> None:
        """Makes a revision whose every stage has one replica, unless that is there already."""
        for service, output in ((f"thinker-{thinker}", "hidden"), (f"speaker-{speaker}", "text")):
            if service not in self.replicas:
                await self.start(service, output=output)
                self.cluster.put(self.slice(service, service))
        self.cluster.put(
            plan_manifest(
                revised(revision, name),
                {"thinker": f"thinker-{thinker}", "speaker": f"speaker-{speaker}"},
            )
        )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield World(stack)


@asynccontextmanager
async def load(gateway: ClusterGateway, *models: str) -> AsyncIterator[Counter[tuple[int, str]]]:
    """Clients that ask one question after the other, meanwhile; how they were answered."""
    answers: Counter[tuple[int, str]] = Counter()
    over = False

    async def client(model: str) -> None:
        while not over:
            answers[await gateway.ask(model)] += 1
            await asyncio.sleep(0)  # A refusal waits for nothing.

    async with asyncio.TaskGroup() as group:
        for model in models:
            for _ in range(CLIENTS):
                group.create_task(client(model))
        try:
            yield answers
        finally:
            over = True


async def until(condition: Callable[[], bool]) -> None:
    """Returns when it has become true."""
    async with asyncio.timeout(ENOUGH_S):
        while not condition():  # noqa: ASYNC110 - several things are looked at, each its own way
            await asyncio.sleep(0.002)


async def more(answers: Counter[tuple[int, str]], count: int = 50) -> None:
    """Returns when that many more requests were answered."""
    enough = answers.total() + count
    await until(lambda: answers.total() >= enough)


def words(*pods: str) -> tuple[int, str]:
    """A good answer that came by these replicas."""
    return 200, " ".join(pods)


async def test_revisions_roll_under_load_and_nobody_fails(world: World, tmp_path: Path) -> None:
    """Forward and back, some of it shared; every request is entirely on one revision."""
    ways = {"a": ("1", "1"), "b": ("2", "1"), "c": ("2", "2")}
    for revision, (thinker, speaker) in ways.items():
        await world.deploy(revision, thinker=thinker, speaker=speaker)
    world.cluster.put(pipeline_manifest("omni", "a"))
    async with (
        cluster_gateway(world.cluster, tmp_path) as gateway,
        load(gateway, "omni") as answers,
    ):
        for turn, revision in enumerate("abcbacab" * 3):
            world.cluster.put(pipeline_manifest("omni", revision, turn=turn))
            await more(answers, 20)

    assert set(answers) == {
        words(f"thinker-{thinker}", f"speaker-{speaker}") for thinker, speaker in ways.values()
    }
    assert all(len(replica.links) == 1 for replica in world.replicas.values())
    assert sum(replica.cancelled for replica in world.replicas.values()) == 0


async def test_an_old_revision_goes_when_its_last_request_has_ended(
    world: World, tmp_path: Path
) -> None:
    await world.deploy("a", thinker="1", speaker="1")
    await world.deploy("b", thinker="2", speaker="1")
    world.cluster.put(pipeline_manifest("omni", "a"))
    old = world.replicas["thinker-1"]
    async with cluster_gateway(world.cluster, tmp_path) as gateway:
        old.answering.clear()
        slow = asyncio.create_task(gateway.ask("omni"))
        await until(lambda: old.asked == 1)
        world.cluster.put(pipeline_manifest("omni", "b", turn=1))
        assert await gateway.ask("omni") == words("thinker-2", "speaker-1")
        await until(lambda: world.said.get("inUse") == ["a"])

        # Its plan may not go now. If it does all the same, the request is not lost.
        world.cluster.remove(
            plan_manifest(revised("a"), {"thinker": "thinker-1", "speaker": "speaker-1"})
        )
        await gateway.ask("omni")
        assert len(gateway.fleet.links) == 3
        old.answering.set()

        assert await slow == words("thinker-1", "speaker-1")
        await until(lambda: len(gateway.fleet.links) == 2)
        await until(lambda: world.said.get("inUse") == [])
    assert old.asked == 1


async def test_a_new_replica_gets_requests_at_once_and_one_that_goes_ends_its_own(
    world: World, tmp_path: Path
) -> None:
    await world.deploy("a", thinker="1", speaker="1")
    world.cluster.put(pipeline_manifest("omni", "a"))
    first, second = (
        world.replicas["thinker-1"],
        await world.start("second", output="hidden"),
    )
    async with (
        cluster_gateway(world.cluster, tmp_path) as gateway,
        load(gateway, "omni") as answers,
    ):
        await more(answers)
        world.cluster.put(world.slice("thinker-1", "second"))
        await until(lambda: second.asked > 20)

        world.cluster.put(world.slice("thinker-1", "thinker-1", ready=False))
        asked = first.asked
        await more(answers)
        assert first.asked <= asked + CLIENTS  # Those that were on their way.
        assert len(gateway.fleet.links) == 2
        quiet = first.asked
        await more(answers)
        assert first.asked == quiet

    assert {status for status, _ in answers} == {200}
    assert first.cancelled == 0


async def test_a_replica_that_flaps_under_load_fails_nobody(world: World, tmp_path: Path) -> None:
    await world.deploy("a", thinker="1", speaker="1")
    await world.start("second", output="hidden")
    world.cluster.put(pipeline_manifest("omni", "a"), world.slice("thinker-1", "second"))
    async with (
        cluster_gateway(world.cluster, tmp_path) as gateway,
        load(gateway, "omni") as answers,
    ):
        for _ in range(20):
            world.cluster.put(world.slice("thinker-1", "second", ready=False))
            await more(answers, 5)
            world.cluster.put(world.slice("thinker-1", "second"))
            await more(answers, 5)
    assert {status for status, _ in answers} == {200}


async def test_while_the_api_server_is_away_requests_are_answered(
    world: World, tmp_path: Path
) -> None:
    await world.deploy("a", thinker="1", speaker="1")
    world.cluster.put(pipeline_manifest("omni", "a"))
    async with (
        cluster_gateway(world.cluster, tmp_path) as gateway,
        load(gateway, "omni") as answers,
    ):
        await more(answers)
        world.cluster.away = True
        await world.deploy("b", thinker="2", speaker="2")
        world.cluster.put(pipeline_manifest("omni", "b", turn=1))
        await more(answers)
        assert set(answers) == {words("thinker-1", "speaker-1")}

        world.cluster.come_back()
        await until(lambda: answers[words("thinker-2", "speaker-2")] > 20)

    assert {status for status, _ in answers} == {200}


async def test_pipelines_share_a_stage_over_one_link(world: World, tmp_path: Path) -> None:
    await world.deploy("a", thinker="1", speaker="1")
    await world.deploy("x", thinker="7", speaker="1", name="other")
    world.cluster.put(pipeline_manifest("omni", "a"), pipeline_manifest("other", "x"))
    async with (
        cluster_gateway(world.cluster, tmp_path) as gateway,
        load(gateway, "omni", "other") as answers,
    ):
        await more(answers, 100)
        world.cluster.remove(pipeline_manifest("other", "x"))
        await until(lambda: any(status == 404 for status, _ in answers))
        await more(answers, 100)

    assert {way for status, way in answers if status == 200} == {
        "thinker-1 speaker-1",
        "thinker-7 speaker-1",
    }
    assert {status for status, _ in answers} == {200, 404}
    assert len(world.replicas["speaker-1"].links) == 1


async def test_a_pipeline_that_nothing_serves_yet_says_when_to_come_again(
    world: World, tmp_path: Path
) -> None:
    world.cluster.put(
        pipeline_manifest("omni", "a"),
        plan_manifest(revised("a"), {"thinker": "thinker-1", "speaker": "speaker-1"}),
    )
    async with cluster_gateway(world.cluster, tmp_path) as gateway:
        listed = (await gateway.http.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["omni"]
        answer = await gateway.http.post(
            "/v1/chat/completions",
            json={"model": "omni", "messages": [{"role": "user", "content": "hello"}]},
        )
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "no replica of stage thinker is ready" in answer.text

        await world.deploy("a", thinker="1", speaker="1")
        await until(lambda: bool(gateway.catalog.serving))

        assert await gateway.ask("omni") == words("thinker-1", "speaker-1")


async def test_a_pipeline_that_comes_and_goes_is_found_and_not_found(
    world: World, tmp_path: Path
) -> None:
    async with cluster_gateway(world.cluster, tmp_path) as gateway:
        assert (await gateway.ask("omni"))[0] == 404
        await world.deploy("a", thinker="1", speaker="1")
        world.cluster.put(pipeline_manifest("omni", "a"))
        await until(lambda: bool(gateway.catalog.serving))
        assert (await gateway.ask("omni"))[0] == 200

        world.cluster.remove(pipeline_manifest("omni", "a"))

        assert (await gateway.ask("omni"))[0] == 404


async def test_in_place_the_old_revision_is_left_before_the_new_one_is_there(
    world: World, tmp_path: Path
) -> None:
    await world.deploy("a", thinker="1", speaker="1")
    world.cluster.put(pipeline_manifest("omni", "a"))
    async with cluster_gateway(world.cluster, tmp_path) as gateway:
        world.cluster.put(pipeline_manifest("omni", "b", turn=1, draining=("a",)))
        status, text = await gateway.ask("omni")
        assert (status, "try again" in text) == (503, True)
        await until(lambda: world.said.get("turn") == 1 and "serving" not in world.said)

        await world.deploy("b", thinker="2", speaker="2")
        await until(lambda: bool(gateway.catalog.serving))

        assert await gateway.ask("omni") == words("thinker-2", "speaker-2")


async def test_two_gateways_say_each_its_own(world: World, tmp_path: Path) -> None:
    await world.deploy("a", thinker="1", speaker="1")
    world.cluster.put(pipeline_manifest("omni", "a"))
    async with cluster_gateway(world.cluster, tmp_path) as gateway:
        await until(lambda: len(world.cluster.entries("omni")) == 1)
        world.cluster.entries("omni").append({"name": "gateway-1", "turn": 0, "serving": "a"})
        await until(lambda: "serving" in world.said)
        writes = len(world.cluster.applied)
        for _ in range(20):
            assert (await gateway.ask("omni"))[0] == 200
        assert len(world.cluster.applied) == writes
    await gateway.discovery.say_goodbye()

    assert [entry["name"] for entry in world.cluster.entries("omni")] == ["gateway-1"]
