"""What an API server holds, as values; and what is wrong with it, by field."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.fake_cluster import pipeline_manifest, plan_manifest, slice_manifest
from fakes.graphs import SPEAKING
from omnistage_common.errors import InvalidPipeline
from omnistage_common.ids import PipelineName, Revision, StageName
from omnistage_common.pipeline.resources.status import GatewayStatus
from omnistage_gateway.discovery.acknowledging import shown
from omnistage_gateway.discovery.reading import (
    SeenPipeline,
    read_pipeline,
    read_plan,
    read_slice,
)
from omnistage_gateway.discovery.source import StageService
from omnistage_gateway.pipelines.pipeline import PipelineKey
from omnistage_gateway.pipelines.serving import Acknowledgement
from omnistage_gateway.replicas.endpoints import ReplicaEndpoint, ServiceKey

SERVICES = {str(stage.name): f"{stage.name}-r1" for stage in SPEAKING.stages}
Spoil = Callable[[dict[str, Any]], object]


def test_a_pipeline_says_what_is_current_and_what_drains() -> None:
    seen = read_pipeline(pipeline_manifest("omni", "new", turn=3, draining=("old",)), "g-0")

    assert seen == SeenPipeline(
        key=PipelineKey(namespace="default", name=PipelineName("omni")),
        uid="uid-of-default-omni",
        created=1_796_032_800,
        current=Revision("new"),
        draining=frozenset({Revision("old")}),
        turn=3,
        said=None,
    )


def test_a_pipeline_that_nobody_looked_at_yet_says_little() -> None:
    manifest = pipeline_manifest("omni")
    del manifest["status"]

    seen = read_pipeline(manifest, "g-0")

    assert (seen.current, seen.draining, seen.turn) == (None, frozenset(), 0)


def test_what_a_gateway_said_is_read_as_it_was_said() -> None:
    said = Acknowledgement(
        turn=2, serving=Revision("a"), routable=(Revision("a"), Revision("b")), in_use=()
    )
    manifest = pipeline_manifest("omni", "a")
    others = shown(Acknowledgement(), "g-1")
    manifest["status"]["gateways"] = [others, shown(said, "g-0")]

    assert read_pipeline(manifest, "g-0").said == said
    assert read_pipeline(manifest, "g-1").said == Acknowledgement()
    assert read_pipeline(manifest, "g-2").said is None


@pytest.mark.parametrize(
    "said",
    [
        Acknowledgement(),
        Acknowledgement(
            turn=7,
            serving=Revision("0a"),
            routable=(Revision("0a"), Revision("1b")),
            in_use=(Revision("2c"),),
        ),
    ],
)
def test_what_is_said_is_what_the_definition_of_the_kind_allows(said: Acknowledgement) -> None:
    read = GatewayStatus.model_validate(shown(said, "gateway-5d9c-x2x"))

    assert (read.turn, read.serving) == (said.turn, said.serving)
    assert (read.routable, read.in_use) == (said.routable, said.in_use)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda m: m.pop("metadata"), "metadata"),
        (lambda m: m["metadata"].pop("namespace"), "namespace"),
        (lambda m: m["status"].update(currentRevision=7), "currentRevision"),
        (lambda m: m["status"].update(turn="many"), "turn"),
        (lambda m: m["metadata"].update(creationTimestamp="noon"), "creationTimestamp"),
    ],
)
def test_a_pipeline_that_is_none_is_refused_by_field(spoil: Spoil, words: str) -> None:
    manifest = pipeline_manifest("omni", "a")
    spoil(manifest)

    with pytest.raises(InvalidPipeline, match=words):
        read_pipeline(manifest, "g-0")


def test_a_plan_names_the_service_of_each_stage() -> None:
    seen = read_plan(plan_manifest(SPEAKING, {**SERVICES, "further": "x-1"}))

    assert seen.plan == SPEAKING
    assert seen.key == PipelineKey(namespace="default", name=PipelineName("graph"))
    assert seen.services[StageName("talker")] == StageService(
        key=ServiceKey(namespace="default", name="talker-r1"), stage=StageName("talker")
    )


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda m: m.pop("data"), "`plan.json` is not a plan"),
        (lambda m: m["data"].update({"plan.json": "{}"}), "`plan.json` is not a plan"),
        (lambda m: m["data"].update({"plan.json": "\ud800"}), "`plan.json` is not a plan"),
        (lambda m: m["data"].pop("services.json"), "`services.json` does not name services"),
        (lambda m: m["data"].update({"services.json": "{}"}), "leaves out: recogniser, thinker"),
        (
            lambda m: m["data"].update({"services.json": '{"thinker": {"stage": "x"}}'}),
            "service",
        ),
        (lambda m: m["metadata"].update(namespace="elsewhere"), "not what"),
        (lambda m: m["metadata"]["labels"].update({"omnistage.io/plan": "other"}), "not what"),
        (lambda m: m["metadata"]["labels"].pop("omnistage.io/pipeline"), "not what"),
        (lambda m: m["metadata"].pop("labels"), "not what"),
    ],
)
def test_a_plan_that_is_none_is_refused_by_field(spoil: Spoil, words: str) -> None:
    manifest = plan_manifest(SPEAKING, SERVICES)
    spoil(manifest)

    with pytest.raises(InvalidPipeline, match=words):
        read_plan(manifest)


def test_a_plan_of_another_pipeline_does_not_pass_for_this_one() -> None:
    manifest = plan_manifest(SPEAKING, SERVICES)
    other = plan_manifest(replace(SPEAKING, name=PipelineName("other")), SERVICES)
    manifest["data"] = other["data"]

    with pytest.raises(InvalidPipeline, match="default/other"):
        read_plan(manifest)


def test_a_replica_is_known_by_the_uid_of_its_pod_and_its_address() -> None:
    seen = read_slice(slice_manifest("thinker-r1", ("thinker-r1-abc", 7001), namespace="models"))

    assert seen.service == ServiceKey(namespace="models", name="thinker-r1")
    assert seen.endpoints == (
        ReplicaEndpoint(
            stage=StageName("thinker"),
            replica="thinker-r1-abc",  # type: ignore[arg-type]
            address="127.0.0.1:7001",
            life="uid-of-thinker-r1-abc",
        ),
    )


@pytest.mark.parametrize(
    ("conditions", "taken"),
    [
        ({"ready": True}, True),
        ({"ready": True, "serving": True, "terminating": False}, True),
        ({"ready": None}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": True, "terminating": True}, False),
        ({"ready": False, "serving": False, "terminating": True}, False),
    ],
)
def test_only_a_ready_replica_that_stays_gets_requests(
    conditions: dict[str, bool], *, taken: bool
) -> None:
    manifest = slice_manifest("thinker-r1", ("a", 7001), conditions=conditions)

    assert bool(read_slice(manifest).endpoints) is taken


def test_a_slice_may_be_empty_and_say_so_in_any_way() -> None:
    manifest = slice_manifest("thinker-r1")
    assert read_slice(manifest).endpoints == ()
    for absent in ("endpoints", "ports"):
        manifest[absent] = None
    assert read_slice(manifest).endpoints == ()


def test_an_address_of_the_newer_kind_gets_its_brackets() -> None:
    manifest = slice_manifest("thinker-r1", ("a", 7001))
    manifest["addressType"] = "IPv6"
    manifest["endpoints"][0]["addresses"] = ["fd00::7"]

    assert read_slice(manifest).endpoints[0].address == "[fd00::7]:7001"


def test_a_replica_without_a_pod_goes_by_its_address() -> None:
    manifest = slice_manifest("thinker-r1", ("a", 7001))
    del manifest["endpoints"][0]["targetRef"]

    assert read_slice(manifest).endpoints[0].replica == "127.0.0.1:7001"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda m: m["metadata"]["labels"].pop("omnistage.io/stage"), "omnistage.io/stage"),
        (lambda m: m["metadata"]["labels"].pop("kubernetes.io/service-name"), "service-name"),
        (lambda m: m.update(ports=[{"name": "http", "port": 80}]), "no port named grpc"),
        (lambda m: m.update(addressType="FQDN"), "FQDN"),
        (lambda m: m.update(endpoints=[{"addresses": "127.0.0.1"}]), "addresses"),
    ],
)
def test_a_slice_that_is_none_is_refused_by_field(spoil: Spoil, words: str) -> None:
    manifest = slice_manifest("thinker-r1", ("a", 7001))
    spoil(manifest)

    with pytest.raises(InvalidPipeline, match=words):
        read_slice(manifest)
