"""Pipelines and replicas as a cluster has them: in any order, with anything wrong, while they change."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.fake_cluster import FakeCluster, pipeline_manifest, plan_manifest, slice_manifest
from fakes.graphs import graph_plan
from fakes.idle_link import Links
from fakes.staged_request import turns
from omnistage_common.errors import (
    MissingDependency,
    ModelNotFound,
    SetupError,
    StageUnavailable,
)
from omnistage_common.ids import ModelName, Revision
from omnistage_common.links.frames import Phase
from omnistage_common.pipeline.plan import PipelinePlan
from omnistage_gateway.discovery import cluster as discovery_module
from omnistage_gateway.discovery import source
from omnistage_gateway.discovery.cluster import ClusterDiscovery
from omnistage_gateway.discovery.cluster_door import Watched
from omnistage_gateway.pipelines.catalog import Catalog
from omnistage_gateway.replicas.fleet import Fleet

OMNI = graph_plan(
    {"thinker": "conversation", "speaker": ""},
    "thinker.hidden speaker",
    outputs={"thinker.text": "text", "speaker.speech": "audio"},
    name="omni",
)


def revised(revision: str, plan: PipelinePlan = OMNI) -> PipelinePlan:
    """Another revision of a plan."""
    return replace(plan, revision=Revision(revision))


def plan_of(
    revision: str, thinker: str = "thinker-1", speaker: str = "speaker-1"
) -> dict[str, Any]:
    """The plan of a revision, and by which services it is served."""
    return plan_manifest(revised(revision), {"thinker": thinker, "speaker": speaker})


def replica(service: str, pod: str = "", **conditions: bool) -> dict[str, Any]:
    """The one replica of a service."""
    return slice_manifest(service, (pod or f"{service}-x", 7001), conditions=conditions)


class Gateway:
    """A gateway as far as it knows pipelines."""

    def __init__(self, cluster: FakeCluster, links: Links) -> None:
        self.links = links
        self.catalog = Catalog()
        self.fleet = Fleet(links)
        self.refused: list[Watched] = []
        self.discovery = ClusterDiscovery(
            cluster.door("g-0"),
            catalog=self.catalog,
            fleet=self.fleet,
            gateway="g-0",
            refused=self.refused.append,
        )

    def serving(self, model: str = "omni") -> str:
        """The revision that serves a model."""
        return self.catalog.find(ModelName(model)).revision

    @property
    def ready(self) -> bool:
        """Whether it should get requests."""
        try:
            self.discovery.check_ready()
        except StageUnavailable:
            return False
        return True


@asynccontextmanager
async def following(cluster: FakeCluster, links: Links | None = None) -> AsyncIterator[Gateway]:
    """A gateway that follows a cluster."""
    gateway = Gateway(cluster, links or Links())
    async with gateway.fleet:
        await gateway.discovery.start()
        task = asyncio.create_task(gateway.discovery.run())
        await turns(20)
        try:
            yield gateway
        finally:
            task.cancel()
            await asyncio.wait((task,))
            assert task.cancelled(), task.exception()


EVERYTHING = (
    pipeline_manifest("omni", "a"),
    plan_of("a"),
    replica("thinker-1"),
    replica("speaker-1"),
)


@pytest.mark.parametrize("order", [*itertools.permutations(EVERYTHING)], ids=range(24))
async def test_in_whatever_order_things_come_they_serve(
    order: tuple[dict[str, Any], ...],
) -> None:
    cluster = FakeCluster()
    async with following(cluster) as gateway:
        for manifest in order[:-1]:
            cluster.put(manifest)
            with pytest.raises((ModelNotFound, StageUnavailable)):
                gateway.serving()
        cluster.put(order[-1])

        assert gateway.serving() == "a"
        assert len(gateway.links.made) == 2


async def test_nothing_is_ready_before_everything_was_told() -> None:
    cluster = FakeCluster()
    gateway = Gateway(cluster, Links())
    with pytest.raises(StageUnavailable, match="has not told yet"):
        gateway.discovery.check_ready()

    async with following(cluster) as other:
        assert other.ready


async def test_it_is_ready_when_links_to_what_serves_have_come_about() -> None:
    cluster = FakeCluster()
    cluster.put(*EVERYTHING, pipeline_manifest("empty", "x"))
    links = Links(phase=None)
    async with following(cluster, links) as gateway:
        with pytest.raises(StageUnavailable, match="links to replicas are being opened"):
            gateway.discovery.check_ready()
        for link in links.made:
            link.says_phase(Phase.READY)
        await turns()

        assert gateway.ready
        links.made[0].breaks()
        assert gateway.ready


async def test_a_replica_that_does_not_answer_keeps_it_from_ready_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery_module, "SETTLING", 0.01)
    cluster = FakeCluster()
    cluster.put(*EVERYTHING)
    async with following(cluster, Links(phase=None)) as gateway, asyncio.timeout(20):
        while not gateway.ready:  # noqa: ASYNC110 - as a kubelet asks
            await asyncio.sleep(0.001)


async def test_without_an_api_server_it_does_not_start() -> None:
    cluster = FakeCluster()
    cluster.away = True

    with pytest.raises(SetupError, match="away") as refused:
        await Gateway(cluster, Links()).discovery.start()
    assert refused.value.field == "--cluster"


async def test_new_requests_move_on_when_the_new_revision_is_reached() -> None:
    cluster = FakeCluster()
    cluster.put(*EVERYTHING)
    links = Links()
    async with following(cluster, links) as gateway:
        cluster.put(plan_of("b", thinker="thinker-2"), replica("thinker-2"))
        assert gateway.serving() == "a"
        cluster.put(pipeline_manifest("omni", "b", turn=1))
        assert gateway.serving() == "b"
        assert Counter(link.endpoint.stage for link in links.made) == {"thinker": 2, "speaker": 1}

        cluster.remove(plan_of("a"))
        await turns()

        assert gateway.serving() == "b"
        assert [link.endpoint.replica for link in gateway.fleet.links] == [
            "speaker-1-x",
            "thinker-2-x",
        ]


async def test_a_revision_half_of_which_is_there_is_not_taken() -> None:
    cluster = FakeCluster()
    cluster.put(*EVERYTHING)
    async with following(cluster) as gateway:
        cluster.put(plan_of("b", thinker="thinker-2", speaker="speaker-2"), replica("thinker-2"))
        cluster.put(pipeline_manifest("omni", "b"))
        assert gateway.serving() == "a"

        cluster.put(replica("speaker-2"))

        assert gateway.serving() == "b"


async def test_slices_of_one_service_add_up() -> None:
    cluster = FakeCluster()
    cluster.put(*EVERYTHING)
    async with following(cluster) as gateway:
        more = slice_manifest("thinker-1", ("second", 7002), ("third", 7002), part="b")
        cluster.put(more)
        pool = gateway.catalog.find(ModelName("omni")).pools[OMNI.stages[0].name]
        assert [link.endpoint.replica for link in pool.links] == ["thinker-1-x", "second", "third"]

        cluster.remove(more)

        assert [link.endpoint.replica for link in pool.links] == ["thinker-1-x"]


async def test_a_replica_that_terminates_is_not_chosen() -> None:
    cluster = FakeCluster()
    cluster.put(*EVERYTHING)
    async with following(cluster) as gateway:
        pool = gateway.catalog.find(ModelName("omni")).pools[OMNI.stages[0].name]
        cluster.put(replica("thinker-1", ready=False, serving=True, terminating=True))
        assert not pool.ready

        cluster.put(replica("thinker-1"))

        assert pool.ready


async def test_a_plan_that_cannot_be_read_is_named_once_and_the_rest_serves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = FakeCluster()
    cluster.put(*EVERYTHING)
    broken = plan_of("b")
    broken["data"]["plan.json"] = "{}"
    async with following(cluster) as gateway:
        for _ in range(3):
            cluster.put(broken)
        cluster.put(pipeline_manifest("omni", "b"))

        assert gateway.serving() == "a"
        assert gateway.refused == [Watched.PLANS]
        said = [line for line in capsys.readouterr().out.splitlines() if "left out" in line]
        assert len(said) == 1
        assert "default/omni-plan-b" in said[0]

        cluster.remove(broken)
        mended = plan_of("b")
        mended["metadata"]["uid"] = "another"
        cluster.put(mended)
        assert gateway.serving() == "b"


async def test_a_slice_that_cannot_be_read_is_as_if_it_were_not_there() -> None:
    cluster = FakeCluster()
    cluster.put(*EVERYTHING)
    async with following(cluster) as gateway:
        broken = replica("thinker-1")
        broken["ports"] = [{"name": "http", "port": 80}]
        cluster.put(broken)
        pool = gateway.catalog.find(ModelName("omni")).pools[OMNI.stages[0].name]
        assert pool.links == ()
        assert gateway.refused == [Watched.REPLICAS]

        cluster.put(replica("thinker-1"))
        assert len(pool.links) == 1


async def test_a_pipeline_that_cannot_be_read_serves_as_it_did() -> None:
    cluster = FakeCluster()
    cluster.put(*EVERYTHING)
    async with following(cluster) as gateway:
        broken = pipeline_manifest("omni", "a")
        broken["status"]["turn"] = "many"
        cluster.put(broken)

        assert gateway.serving() == "a"
        assert gateway.refused == [Watched.PIPELINES]


async def test_a_plan_whose_media_cannot_be_decoded_here_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: object) -> None:
        raise MissingDependency("video needs PyAV; install `omnistage[gateway]`")

    monkeypatch.setattr(source, "prepare_media", missing)
    cluster = FakeCluster()
    cluster.put(*EVERYTHING)
    async with following(cluster) as gateway:
        assert gateway.refused == [Watched.PLANS]
        assert gateway.links.made == []


async def test_while_the_api_server_is_away_everything_serves_as_it_did() -> None:
    cluster = FakeCluster()
    cluster.put(*EVERYTHING)
    async with following(cluster) as gateway:
        cluster.away = True
        cluster.put(pipeline_manifest("omni", "b"), plan_of("b"))
        assert gateway.serving() == "a"
        gateway.links.made[0].breaks()
        gateway.links.made[0].says_phase(Phase.READY)
        assert (gateway.serving(), gateway.ready) == ("a", True)

        cluster.come_back()

        assert gateway.serving() == "b"


async def test_two_pipelines_share_the_link_of_a_stage() -> None:
    cluster = FakeCluster()
    cluster.put(*EVERYTHING)
    other = replace(OMNI, name="other", served_names=(ModelName("other"),))
    cluster.put(
        pipeline_manifest("other", "a"),
        plan_manifest(revised("a", other), {"thinker": "thinker-9", "speaker": "speaker-1"}),
        replica("thinker-9"),
    )
    async with following(cluster) as gateway:
        assert gateway.serving("omni") == gateway.serving("other") == "a"
        pools = [gateway.catalog.find(ModelName(name)).pools for name in ("omni", "other")]
        speaker = OMNI.stages[1].name
        assert pools[0][speaker] is pools[1][speaker]
        assert len(gateway.links.made) == 3

        cluster.remove(pipeline_manifest("omni", "a"), plan_of("a"))
        await turns()

        assert gateway.serving("other") == "a"
        assert {link.endpoint.replica for link in gateway.fleet.links} == {
            "speaker-1-x",
            "thinker-9-x",
        }


async def test_services_of_one_name_in_two_namespaces_are_two() -> None:
    cluster = FakeCluster()
    cluster.put(*EVERYTHING)
    there = replace(OMNI, namespace="lab", served_names=(ModelName("lab"),))
    cluster.put(
        pipeline_manifest("omni", "a", namespace="lab"),
        plan_manifest(revised("a", there), {"thinker": "thinker-1", "speaker": "speaker-1"}),
        slice_manifest("thinker-1", ("lab-thinker", 7001), namespace="lab"),
        slice_manifest("speaker-1", ("lab-speaker", 7001), namespace="lab"),
    )
    async with following(cluster) as gateway:
        pools = gateway.catalog.find(ModelName("lab")).pools.values()

        assert [link.endpoint.replica for pool in pools for link in pool.links] == [
            "lab-thinker",
            "lab-speaker",
        ]


async def test_a_name_that_two_claim_is_that_of_the_older() -> None:
    cluster = FakeCluster()
    cluster.put(*EVERYTHING)
    elder = replace(OMNI, namespace="zoo")
    cluster.put(
        pipeline_manifest("omni", "z", namespace="zoo", created="2026-11-30T09:59:59Z"),
        plan_manifest(revised("z", elder), {"thinker": "thinker-1", "speaker": "speaker-1"}),
        slice_manifest("thinker-1", ("a", 7001), namespace="zoo"),
        slice_manifest("speaker-1", ("b", 7001), namespace="zoo"),
    )
    async with following(cluster) as gateway:
        assert gateway.serving() == "z"


async def test_what_it_says_follows_what_it_does() -> None:
    cluster = FakeCluster()
    cluster.put(*EVERYTHING)
    async with following(cluster) as gateway:
        (said,) = cluster.entries("omni")
        assert said == {"name": "g-0", "turn": 0, "serving": "a", "routable": ["a"], "inUse": []}
        old = gateway.catalog.find(ModelName("omni"))
        old.enter()
        cluster.put(plan_of("b", thinker="thinker-2"), replica("thinker-2"))
        cluster.put(pipeline_manifest("omni", "b", turn=1))
        await turns(10)
        (said,) = cluster.entries("omni")
        assert (said["turn"], said["serving"], said["inUse"]) == (1, "b", ["a"])

        old.leave()
        await turns(10)

        (said,) = cluster.entries("omni")
        assert said["inUse"] == []
    await gateway.discovery.say_goodbye()
    assert cluster.entries("omni") == []
    assert len(cluster.applied) == 4


@pytest.mark.parametrize("seed", range(8))
async def test_any_way_leads_to_the_same_place(seed: int) -> None:
    """Level-based: objects come, go and come again in any order; what counts is what is there."""
    choice = random.Random(seed)  # noqa: S311 - a test's choice
    every = [
        *EVERYTHING,
        plan_of("b", thinker="thinker-2"),
        replica("thinker-2"),
        slice_manifest("thinker-2", ("more", 7002), part="b"),
    ]
    cluster = FakeCluster()
    there: dict[int, dict[str, Any]] = {}
    async with following(cluster) as gateway:
        for _ in range(60):
            at = choice.randrange(len(every))
            if at in there and choice.random() < 0.5:
                cluster.remove(there.pop(at))
            else:
                there[at] = every[at]
                cluster.put(every[at])
            if choice.random() < 0.3:
                await turns()
        for at, manifest in enumerate(every):
            if at not in there:
                cluster.put(manifest)
        cluster.put(pipeline_manifest("omni", "b"))
        await turns()

        assert gateway.serving() == "b"
        assert sorted(link.endpoint.replica for link in gateway.fleet.links) == [
            "more",
            "speaker-1-x",
            "thinker-1-x",
            "thinker-2-x",
        ]
