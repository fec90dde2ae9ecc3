"""From a pipeline to Stage objects, plans, policies and status."""

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from omnistage_common.ids import ModelName
from omnistage_common.pipeline.plan import decode_plan
from omnistage_common.pipeline.resources.status import InferencePipelineStatus
from omnistage_operator.planning.decisions import Decision
from omnistage_operator.planning.pipelines import (
    REPLICAS_ANNOTATION,
    ObservedPipeline,
    plan_pipeline,
    runtimes_needed,
    stages_needed,
)

SHIPPED = sorted((Path(__file__).parents[4] / "deploy" / "pipelines").glob("*.yaml"))
OMNI = Path(__file__).parents[4] / "deploy" / "pipelines" / "simulated-omni.yaml"
NOW, LATER = "2026-12-01T00:00:00Z", "2026-12-01T00:01:00Z"
GATEWAY = "gateway-0"

Object = dict[str, Any]


def objects_of(path: Path) -> list[Object]:
    """The objects of a file, as a cluster has them."""
    found = list(yaml.safe_load_all(path.read_text()))
    for index, each in enumerate(found):
        each["metadata"].update({"uid": f"uid-{index}", "generation": 1})
        if each["kind"] in {"InferencePipeline", "Stage"}:
            each["metadata"].setdefault("namespace", "default")
    return found


class World:
    """What is there for one pipeline; executes decisions as the executor does."""

    def __init__(self, path: Path = OMNI) -> None:
        given = objects_of(path)
        self.pipeline = next(each for each in given if each["kind"] == "InferencePipeline")
        self.templates = [each for each in given if each["kind"] == "PipelineTemplate"]
        self.runtimes = [each for each in given if each["kind"] == "StageRuntime"]
        self.stages = {e["metadata"]["name"]: e for e in given if e["kind"] == "Stage"}
        self.children: dict[tuple[str, str], Object] = {}
        self.gateways: tuple[str, ...] = ()
        self.taken: dict[ModelName, str] = {}

    def observed(self) -> ObservedPipeline:
        """As the planner gets it."""
        return ObservedPipeline(
            pipeline=self.pipeline,
            template=self.templates[0] if self.templates else None,
            runtimes=tuple(self.runtimes),
            stages=tuple(self.stages.values()),
            plans=tuple(self.of_kind("ConfigMap")),
            policies=tuple(self.of_kind("NetworkPolicy")),
            gateways=self.gateways,
            taken=self.taken,
            url="http://omnistage-gateway.omnistage:8000",
        )

    def of_kind(self, kind: str) -> list[Object]:
        """Children of a kind, by name."""
        return [each for (of, _), each in sorted(self.children.items()) if of == kind]

    def reconcile(self, now: str = NOW) -> Decision:
        """Plans once and executes it."""
        decision = plan_pipeline(self.observed(), now=now)
        for each in decision.apply:
            self._apply(copy.deepcopy(dict(each)))
        for gone in decision.delete:
            if gone.kind == "Stage":
                del self.stages[gone.name]
            else:
                del self.children[gone.kind, gone.name]
        if decision.status is not None:
            gateways = self.status.get("gateways", [])
            self.pipeline["status"] = {**decision.status, "gateways": gateways}
            InferencePipelineStatus.model_validate_json(json.dumps(self.status))
        return decision

    def _apply(self, obj: Object) -> None:
        name = obj["metadata"]["name"]
        obj["metadata"]["uid"] = f"uid-of-{name}"
        if obj["kind"] != "Stage":
            self.children[obj["kind"], name] = obj
            return
        before = self.stages.get(name, {"spec": {"replicas": 1}, "status": {}})
        obj["spec"].setdefault("replicas", before["spec"]["replicas"])
        obj["status"] = before.get("status", {})
        self.stages[name] = obj

    @property
    def status(self) -> Object:
        """Of the pipeline."""
        found: Object = self.pipeline.get("status", {})
        return found

    def condition(self, name: str) -> Object:
        """One condition of the pipeline."""
        found: list[Object] = [c for c in self.status["conditions"] if c["type"] == name]
        return found[0]

    def stage_becomes(self, name: str, *, ready: int | None = None, **status: object) -> None:
        """As the stage controller would say it, of the revision that the pipeline asks for."""
        (wanted,) = [s for s in self.status["stages"] if s["stage"] == name]
        replicas = self.stages[name]["spec"]["replicas"]
        count = replicas if ready is None else ready
        self.stages[name]["status"] = {
            "revision": wanted["revision"],
            "reason": "Ready" if count >= replicas else "ModelLoading",
            "revisions": [
                {
                    "revision": wanted["revision"],
                    "desired": replicas,
                    "ready": count,
                    "updated": replicas,
                    "phase": "Serving",
                }
            ],
            **status,
        }

    def all_stages_ready(self) -> None:
        """Every stage has all its replicas."""
        for stage in self.status["stages"]:
            self.stage_becomes(stage["stage"])

    def gateway_says(self, **entry: object) -> None:
        """As a gateway would that follows at once; `entry` says where it does not."""
        self.gateways = (GATEWAY,)
        said = {
            "name": GATEWAY,
            "turn": self.status["turn"],
            "serving": self.status["currentRevision"],
            "routable": [self.status["currentRevision"]],
            **entry,
        }
        self.pipeline["status"] = {**self.status, "gateways": [said]}

    def serve(self) -> None:
        """Until it is Ready."""
        self.reconcile()
        self.all_stages_ready()
        self.gateway_says()
        self.reconcile()
        assert self.condition("Ready")["status"] == "True"

    def edit(self, stage: str, **settings: object) -> None:
        """The user changes a stage of the pipeline."""
        stages = self.pipeline["spec"].setdefault("stages", [])
        found = next((each for each in stages if each["name"] == stage), None)
        if found is None:
            stages.append(found := {"name": stage})
        found.update(settings)
        self.pipeline["metadata"]["generation"] += 1


@pytest.fixture
def world() -> World:
    return World()


def applied(decision: Decision, kind: str) -> list[Mapping[str, Any]]:
    return [each for each in decision.apply if each["kind"] == kind]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_pipeline_becomes_ready(path: Path) -> None:
    world = World(path)

    world.serve()

    stages = len(world.status["stages"])
    assert world.status["stagesReady"] == f"{stages}/{stages}"


def test_each_stage_gets_an_object_of_its_own_that_goes_with_the_pipeline(world: World) -> None:
    decision = world.reconcile()

    stages = applied(decision, "Stage")
    assert [each["metadata"]["name"] for each in stages] == [
        "simulated-omni-thinker",
        "simulated-omni-talker",
        "simulated-omni-code2wav",
    ]
    for stage in stages:
        (owner,) = stage["metadata"]["ownerReferences"]
        assert owner["uid"] == world.pipeline["metadata"]["uid"]
        assert owner["controller"]


def test_the_plan_says_where_the_replicas_are(world: World) -> None:
    world.reconcile()

    (plan,) = world.of_kind("ConfigMap")
    assert plan["immutable"] is True
    resolved = decode_plan(plan["data"]["plan.json"].encode())
    services = msgspec.json.decode(plan["data"]["services.json"])
    assert resolved.revision == world.status["targetRevision"]
    assert set(services) == {stage.name for stage in resolved.stages}
    for stage in resolved.stages:
        found = services[stage.name]
        assert found["revision"] == stage.revision
        assert found["service"] == f"{found['stage']}-{stage.revision}"


def test_planning_again_decides_the_same_and_time_alone_changes_nothing(world: World) -> None:
    world.serve()
    before = world.reconcile()

    again = world.reconcile(now=LATER)

    assert again == before
    assert applied(again, "ConfigMap") == []


def test_stages_that_have_an_edge_let_each_other_in(world: World) -> None:
    world.reconcile()

    allowed = {
        policy["spec"]["podSelector"]["matchLabels"]["omnistage.io/stage"]: [
            peer["podSelector"]["matchLabels"]["omnistage.io/stage"]
            for peer in policy["spec"]["ingress"][0]["from"]
        ]
        for policy in world.of_kind("NetworkPolicy")
    }
    assert allowed["simulated-omni-talker"] == ["simulated-omni-code2wav", "simulated-omni-thinker"]
    assert allowed["simulated-omni-thinker"] == ["simulated-omni-talker"]


def test_it_is_not_ready_before_its_stages_are(world: World) -> None:
    world.reconcile()

    assert world.condition("Ready")["status"] == "False"
    assert world.status["stagesReady"] == "0/3"
    world.all_stages_ready()
    world.stage_becomes("simulated-omni-talker", ready=0, message="loading 3 of 7 shards")
    world.reconcile()
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ModelLoading")
    assert ready["message"].startswith("stage talker: loading 3 of 7 shards")


def test_it_is_not_ready_before_a_gateway_reaches_it(world: World) -> None:
    world.reconcile()
    world.all_stages_ready()

    world.reconcile()

    assert world.condition("Routable")["reason"] == "NoGateway"
    assert world.condition("Ready")["reason"] == "NotRoutable"
    world.gateways = (GATEWAY,)
    world.reconcile()
    assert GATEWAY in world.condition("Ready")["message"]


def test_a_changed_stage_waits_beside_what_serves_and_alone_changes(world: World) -> None:
    world.serve()
    serving = world.status["currentRevision"]
    specs = {name: copy.deepcopy(stage["spec"]) for name, stage in world.stages.items()}

    world.edit("talker", engineArgs={"outputs": {"codes": {"frames": 3}}})
    world.reconcile()

    changed = {name for name, stage in world.stages.items() if stage["spec"] != specs[name]}
    assert changed == {"simulated-omni-talker"}
    assert world.status["currentRevision"] == serving
    assert len(world.of_kind("ConfigMap")) == 2
    assert world.condition("Ready")["status"] == "False"
    assert world.condition("Progressing")["status"] == "True"


def test_it_moves_when_the_new_stage_is_ready_and_the_old_plan_goes_last(world: World) -> None:
    world.serve()
    old = world.status["currentRevision"]
    world.edit("talker", engineArgs={"outputs": {"codes": {"frames": 3}}})
    world.reconcile()

    world.all_stages_ready()
    world.reconcile()
    new = world.status["currentRevision"]

    assert new == world.status["targetRevision"] != old
    assert len(world.of_kind("ConfigMap")) == 2
    world.gateway_says(inUse=[old])
    world.reconcile()
    assert len(world.of_kind("ConfigMap")) == 2
    world.gateway_says()
    world.reconcile()
    (left,) = world.of_kind("ConfigMap")
    assert left["metadata"]["labels"]["omnistage.io/plan"] == new
    assert world.condition("Ready")["status"] == "True"


def test_a_reverted_edit_leaves_things_as_they_were(world: World) -> None:
    world.serve()
    old, stages = world.status["currentRevision"], copy.deepcopy(world.stages)
    world.edit("talker", engineArgs={"outputs": {"codes": {"frames": 3}}})
    world.reconcile()

    world.edit("talker", engineArgs={})
    world.gateway_says()
    world.reconcile()
    world.reconcile()

    assert world.status["currentRevision"] == old
    assert [each["spec"] for each in world.stages.values()] == [
        each["spec"] for each in stages.values()
    ]
    assert len(world.of_kind("ConfigMap")) == 1


def test_an_invalid_edit_keeps_what_serves_and_says_what_is_wrong(world: World) -> None:
    world.serve()
    serving = world.status["currentRevision"]

    world.edit("nobody", replicas=2)
    decision = world.reconcile(now=LATER)

    assert (decision.apply, decision.delete) == ((), ())
    assert world.status["currentRevision"] == serving
    graph = world.condition("GraphValid")
    assert (graph["status"], graph["reason"]) == ("False", "GraphInvalid")
    assert "spec.stages[nobody]" in graph["message"]
    assert graph["lastTransitionTime"] == LATER


def test_what_is_missing_is_named(world: World) -> None:
    template = world.templates.pop()
    world.reconcile()
    assert world.condition("Ready")["reason"] == "TemplateMissing"

    world.templates.append(template)
    world.edit("talker", runtime={"name": "fast"})
    world.reconcile()
    assert world.condition("Ready")["reason"] == "RuntimeMissing"
    assert "there is no StageRuntime `fast`" in world.condition("Ready")["message"]

    world.edit("talker", stageRef={"name": "voice"})
    world.reconcile()
    assert world.condition("Ready")["reason"] == "StageMissing"


def test_a_stage_of_that_name_that_is_somebody_elses_is_left_alone(world: World) -> None:
    world.stages["simulated-omni-talker"] = {
        "apiVersion": "omnistage.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": "simulated-omni-talker", "namespace": "default", "uid": "other"},
        "spec": {"replicas": 1},
    }

    decision = world.reconcile()

    assert decision.apply == ()
    assert "there is another one of that name" in world.condition("Ready")["message"]


def test_a_scaled_stage_keeps_its_number_until_the_pipeline_asks_for_another(world: World) -> None:
    world.edit("talker", replicas=2)
    world.serve()
    talker = world.stages["simulated-omni-talker"]
    assert talker["spec"]["replicas"] == 2
    assert talker["metadata"]["annotations"][REPLICAS_ANNOTATION] == "2"

    talker["spec"]["replicas"] = 5
    world.reconcile()
    assert world.stages["simulated-omni-talker"]["spec"]["replicas"] == 5

    world.edit("talker", replicas=3)
    world.reconcile()
    assert world.stages["simulated-omni-talker"]["spec"]["replicas"] == 3


def test_an_autoscaled_stage_is_never_told_a_number(world: World) -> None:
    world.edit("talker", autoscaling={"minReplicas": 1, "maxReplicas": 4})

    decision = world.reconcile()

    (talker,) = [
        each
        for each in applied(decision, "Stage")
        if each["metadata"]["name"] == "simulated-omni-talker"
    ]
    assert "replicas" not in talker["spec"]
    assert talker["spec"]["autoscaling"]["maxReplicas"] == 4


def test_a_shared_stage_is_used_and_not_written(world: World) -> None:
    world.serve()
    talker = copy.deepcopy(world.stages["simulated-omni-talker"])
    talker["metadata"] = {"name": "voice", "namespace": "default", "uid": "v", "generation": 1}
    world.stages["voice"] = talker
    world.edit("talker", stageRef={"name": "voice"})

    decision = world.reconcile()

    assert "voice" not in {each["metadata"]["name"] for each in applied(decision, "Stage")}
    assert world.status["stages"][1]["stage"] == "voice"
    assert "simulated-omni-talker" in world.stages, "the serving plan still names it"
    world.all_stages_ready()
    world.reconcile()
    world.gateway_says()
    world.reconcile()
    world.reconcile()
    assert "simulated-omni-talker" not in world.stages
    assert "voice" in world.stages


def test_the_runtimes_of_shared_stages_count_as_well(world: World) -> None:
    world.edit("thinker", runtime={"name": "big"})
    world.edit("talker", stageRef={"name": "voice"})
    voice = {"metadata": {"name": "voice"}, "spec": {"runtime": {"name": "small"}}}

    assert runtimes_needed(world.pipeline, [voice]) == {"big", "small"}


def test_a_name_that_an_older_pipeline_serves_is_said(world: World) -> None:
    world.serve()
    world.taken = {ModelName("simulated-omni"): "default/elder"}

    world.reconcile()

    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "NameTaken")
    assert "default/elder" in ready["message"]
    assert world.condition("Stalled")["status"] == "True"


def test_in_place_the_gateways_leave_before_new_pods_come(world: World) -> None:
    world.pipeline["spec"]["rollout"] = {"strategy": "InPlace"}
    world.serve()
    old = world.status["currentRevision"]

    world.edit("talker", engineArgs={"outputs": {"codes": {"frames": 3}}})
    world.reconcile()

    phases = {each["revision"]: each["phase"] for each in world.status["revisions"]}
    assert phases[old] == "Draining"
    world.gateway_says(serving=None, routable=[])
    world.reconcile()
    assert len(world.of_kind("ConfigMap")) == 1


def test_a_pipeline_that_is_being_deleted_is_left_to_the_garbage_collection(world: World) -> None:
    world.pipeline["metadata"]["deletionTimestamp"] = NOW

    assert plan_pipeline(world.observed(), now=NOW) == Decision()


def test_long_names_stay_names(world: World) -> None:
    world.pipeline["metadata"]["name"] = "p" * 63

    decision = world.reconcile()

    names = [each["metadata"]["name"] for each in decision.apply]
    assert len(set(zip([e["kind"] for e in decision.apply], names, strict=True))) == len(names)
    assert max(map(len, names)) <= 63


def test_a_stage_that_nobody_wants_is_no_gap(world: World) -> None:
    world.edit("talker", replicas=0)
    world.reconcile()
    world.all_stages_ready()
    world.stage_becomes("simulated-omni-talker", reason="ScaledToZero")
    world.gateway_says(serving=None, routable=[])
    world.reconcile()

    talker = world.status["stages"][1]
    assert talker["reason"] == "ScaledToZero"
    assert world.condition("Ready")["status"] == "False"


def test_observed_values_are_not_changed(world: World) -> None:
    world.serve()
    seen = world.observed()
    before = copy.deepcopy(seen)

    plan_pipeline(seen, now=LATER)

    assert seen == before
    assert replace(seen, url="") != before


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_the_stages_that_a_pipeline_makes_are_among_those_that_it_needs(file: Path) -> None:
    world = World(file)
    template = world.templates[0] if world.templates else None

    made = {
        each["metadata"]["name"]
        for each in plan_pipeline(world.observed(), now=NOW).apply
        if each["kind"] == "Stage"
    }

    shared = {
        each["stageRef"]["name"]
        for each in world.pipeline["spec"].get("stages", [])
        if "stageRef" in each
    }
    assert made | shared <= stages_needed(world.pipeline, template)


def test_without_its_template_a_pipeline_needs_the_stages_that_it_shares() -> None:
    spec = {"template": {"name": "t"}, "stages": [{"name": "a", "stageRef": {"name": "s"}}]}
    pipeline = {"metadata": {"name": "p", "namespace": "n"}, "spec": spec}

    assert stages_needed(pipeline, None) == {"s"}
