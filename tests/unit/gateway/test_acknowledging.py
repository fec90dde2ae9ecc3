"""What a gateway says of each pipeline: written when it changes, and only then."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.fake_cluster import FakeCluster, pipeline_manifest
from fakes.graphs import graph_plan
from fakes.scripted_link import ScriptedLink
from fakes.staged_request import turns
from omnistage_common.ids import Revision, StageName
from omnistage_common.links.frames import Phase
from omnistage_gateway.discovery import acknowledging
from omnistage_gateway.discovery.acknowledging import Acknowledger
from omnistage_gateway.discovery.cluster_door import Manifest, Watched
from omnistage_gateway.discovery.reading import read_pipeline
from omnistage_gateway.pipelines.catalog import Catalog
from omnistage_gateway.pipelines.pipeline import Pipeline
from omnistage_gateway.replicas.pool import StagePool

PLAN = graph_plan({"thinker": "conversation"}, outputs={"thinker.text": "text"}, name="omni")
GATEWAY = "g-0"


class Follower:
    """A gateway as far as it acknowledges: it takes in pipelines and hands on changes."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.catalog = Catalog()
        self.acknowledger = Acknowledger(cluster.door(GATEWAY), self.catalog, GATEWAY)
        self.catalog.on_change = lambda key, _: self.acknowledger.look(key)

    def changed(self, kind: Watched, manifest: Manifest) -> None:
        """Takes in a pipeline."""
        assert kind is Watched.PIPELINES
        seen = read_pipeline(manifest, GATEWAY)
        self.catalog.direct(seen.key, seen.current, turn=seen.turn, draining=seen.draining)
        self.acknowledger.seen(seen.key, seen.uid, seen.said)

    def deleted(self, kind: Watched, manifest: Manifest) -> None:  # noqa: ARG002
        """Lets go of a pipeline."""
        for pipeline in list(self.catalog.pipelines()):
            self.catalog.withdraw(pipeline.key)
            self.acknowledger.gone(pipeline.key)

    def synced(self) -> None:
        """Nothing waits for it."""

    def add_plan(self, revision: str = "a", *, ready: bool = True) -> Pipeline:
        """A revision of the pipeline, whose replica is ready, or never is."""
        link = ScriptedLink("thinker", phase=None)
        pool = StagePool(StageName("thinker"), [link])
        link.on_phase = pool.refresh
        pipeline = Pipeline(replace(PLAN, revision=Revision(revision)), {pool.stage: pool})
        self.catalog.put(pipeline)
        if ready:
            link.says_phase(Phase.READY)
        return pipeline


@asynccontextmanager
async def following(cluster: FakeCluster) -> AsyncIterator[Follower]:
    """A follower at work."""
    follower = Follower(cluster)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(cluster.watch(follower)),
            group.create_task(follower.acknowledger.run()),
        ]
        await turns(20)
        yield follower
        for task in tasks:
            task.cancel()


def entry(**said: Any) -> dict[str, Any]:
    """An entry of the gateway."""
    return {"name": GATEWAY, "turn": 0, "routable": [], "inUse": []} | said


async def test_it_says_something_of_every_pipeline_from_the_start() -> None:
    cluster = FakeCluster()
    cluster.put(pipeline_manifest("omni"), pipeline_manifest("other", "a"))
    async with following(cluster):
        assert cluster.entries("omni") == [entry()]
        assert cluster.entries("other") == [entry()]
    assert len(cluster.applied) == 2


async def test_a_write_names_manager_uid_and_own_entry_alone() -> None:
    cluster = FakeCluster()
    cluster.put(pipeline_manifest("omni", "a", turn=1))
    async with following(cluster) as follower:
        follower.add_plan()
        await turns(10)

    manager, manifest = cluster.applied[-1]
    assert manager == "omnistage-gateway/g-0"
    assert manifest == {
        "apiVersion": "omnistage.io/v1alpha1",
        "kind": "InferencePipeline",
        "metadata": {"name": "omni", "namespace": "default", "uid": "uid-of-default-omni"},
        "status": {"gateways": [entry(turn=1, serving="a", routable=["a"])]},
    }


async def test_what_does_not_change_is_not_written() -> None:
    cluster = FakeCluster()
    cluster.put(pipeline_manifest("omni", "a"))
    async with following(cluster) as follower:
        pipeline = follower.add_plan()
        await turns(10)
        before = len(cluster.applied)
        for _ in range(20):
            pipeline.enter()
            pipeline.leave()
            cluster.put(pipeline_manifest("omni", "a"))
            follower.acknowledger.look(pipeline.key)
            await turns()

        assert len(cluster.applied) == before


async def test_what_stands_there_from_an_earlier_life_is_not_written_again() -> None:
    cluster = FakeCluster()
    cluster.put(pipeline_manifest("omni", "a"))
    async with following(cluster) as follower:
        follower.add_plan()
        await turns(10)
    cluster.applied.clear()

    follower = Follower(cluster)
    follower.add_plan()
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(cluster.watch(follower))
        await turns()
        writing = group.create_task(follower.acknowledger.run())
        await turns(10)
        watching.cancel()
        writing.cancel()

    assert cluster.applied == []


async def test_changes_that_come_faster_than_writes_are_one_write() -> None:
    cluster = FakeCluster()
    cluster.put(pipeline_manifest("omni", "a"))
    async with following(cluster) as follower:
        follower.add_plan()
        await turns(10)
        cluster.applied.clear()
        for revision in "bcdefg":
            follower.add_plan(revision)
        await turns(10)

        assert [m["status"]["gateways"][0]["routable"] for _, m in cluster.applied] == [
            list("abcdefg")
        ]


async def test_what_somebody_else_has_removed_is_written_again() -> None:
    cluster = FakeCluster()
    cluster.put(pipeline_manifest("omni", "a"))
    async with following(cluster) as follower:
        follower.add_plan()
        await turns(10)
        said = cluster.entries("omni")

        spoiled = pipeline_manifest("omni", "a")
        spoiled["status"]["gateways"] = []
        cluster.put(spoiled)
        await turns(10)

        assert cluster.entries("omni") == said


async def test_a_pipeline_that_was_made_anew_is_told_anew() -> None:
    cluster = FakeCluster()
    cluster.put(pipeline_manifest("omni", "a"))
    async with following(cluster) as follower:
        follower.add_plan()
        await turns(10)

        cluster.put(pipeline_manifest("omni", "a", uid="another"))
        await turns(10)

        assert cluster.entries("omni") == [entry(serving="a", routable=["a"])]
        assert cluster.applied[-1][1]["metadata"]["uid"] == "another"


async def test_a_pipeline_that_is_gone_is_not_written_to() -> None:
    cluster = FakeCluster()
    manifest = pipeline_manifest("omni", "a")
    cluster.put(manifest)
    async with following(cluster) as follower:
        pipeline = follower.add_plan()
        await turns(10)
        cluster.applied.clear()

        cluster.remove(manifest)
        follower.acknowledger.look(pipeline.key)
        await turns(10)

        assert cluster.applied == []


async def test_a_write_that_finds_nobody_is_not_tried_again() -> None:
    cluster = FakeCluster()
    manifest = pipeline_manifest("omni", "a")
    cluster.put(manifest)
    async with following(cluster) as follower:
        cluster.away = True
        cluster.remove(manifest)  # The gateway does not hear of it.
        cluster.away = False
        follower.add_plan()
        await turns(10)
        count = len(cluster.applied)
        follower.acknowledger.look(next(follower.catalog.pipelines()).key)
        await turns(10)

        assert len(cluster.applied) == count


async def test_while_the_api_server_is_away_it_tries_later_and_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acknowledging, "FIRST_RETRY", 0.001)
    cluster = FakeCluster()
    cluster.put(pipeline_manifest("omni", "a"))
    async with following(cluster) as follower:
        cluster.away = True
        follower.add_plan()
        await turns(10)
        writes = cluster.attempts
        await asyncio.sleep(0.05)
        assert writes < cluster.attempts < writes + 10
        assert cluster.entries("omni") == [entry()]

        cluster.come_back()
        async with asyncio.timeout(20):
            while cluster.entries("omni") == [entry()]:  # noqa: ASYNC110 - no one tells of it
                await asyncio.sleep(0.001)

        assert cluster.entries("omni") == [entry(serving="a", routable=["a"])]


async def test_at_the_end_it_takes_back_what_it_said() -> None:
    cluster = FakeCluster()
    cluster.put(pipeline_manifest("omni", "a"), pipeline_manifest("other"))
    cluster.put(pipeline_manifest("late"))
    async with following(cluster) as follower:
        follower.add_plan()
        await turns(10)

    await follower.acknowledger.say_goodbye()

    for name in ("omni", "other", "late"):
        assert cluster.entries(name) == []
    assert cluster.applied[-1][1]["status"] == {"gateways": []}


async def test_at_the_end_an_api_server_that_is_away_is_not_waited_for() -> None:
    cluster = FakeCluster()
    cluster.put(pipeline_manifest("omni", "a"))
    async with following(cluster) as follower:
        pass
    cluster.away = True

    await follower.acknowledger.say_goodbye()

    assert cluster.entries("omni") == [entry()]
