"""Both controllers against an API server: who is woken by what, and what they leave there.

The server is a fake that keeps objects and tells of changes; what controllers of Kubernetes and
kubelets would do, a test does by hand.
"""

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.api_server import FakeApiServer
from fakes.controlled import running, until
from omnistage_common.cluster.api import Api
from omnistage_common.cluster.caches import Caches
from omnistage_common.cluster.kinds import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    INFERENCE_PIPELINES,
    PIPELINE_TEMPLATES,
    PODS,
    STAGE_RUNTIMES,
    STAGES,
    ResourceKind,
)
from omnistage_common.cluster.manifests import Manifest, ObjectKey
from omnistage_common.cluster.rates import BackoffRule
from omnistage_operator.cluster.applying import Applier
from omnistage_operator.cluster.recording import Recorder
from omnistage_operator.control.controlling import Controller
from omnistage_operator.control.metrics import OperatorMetrics
from omnistage_operator.control.queueing import QueueRates
from omnistage_operator.controllers.pipelines import PipelineReconciler
from omnistage_operator.controllers.stages import StageReconciler
from omnistage_operator.controllers.watching import watch_everything
from omnistage_operator.planning.settings import OperatorSettings

SHIPPED = Path(__file__).parents[4] / "deploy" / "pipelines" / "simulated-omni.yaml"
PIPELINE = ObjectKey("models", "simulated-omni")
THINKER, TALKER, CODE2WAV = (f"simulated-omni-{name}" for name in ("thinker", "talker", "code2wav"))
GATEWAYS = "omnistage"
QUICK = QueueRates(backoff=BackoffRule(first_s=0.001, most_s=0.05), retries_per_s=1e6)


class Operator:
    """The operator without its process."""

    def __init__(self, api: Api, caches: Caches, metrics: OperatorMetrics) -> None:
        settings = OperatorSettings(stage_image="stage:1", gateway_namespace=GATEWAYS)
        watch_everything(caches, settings)
        applier = Applier(api=api, caches=caches, metrics=metrics)
        recorder = Recorder(api=api, controller="test", instance="test", metrics=metrics)
        stages = StageReconciler(caches, applier, recorder, settings)
        pipelines = PipelineReconciler(caches, applier, recorder, settings)
        self._caches = caches
        self._recorder = recorder
        self._controllers = [
            Controller(
                name="stage",
                reconcile=stages.reconcile,
                primary=caches.watch(STAGES),
                sources=stages.sources(caches),
                metrics=metrics.controller("stage"),
                rates=QUICK,
            ),
            Controller(
                name="pipeline",
                reconcile=pipelines.reconcile,
                primary=caches.watch(INFERENCE_PIPELINES),
                sources=pipelines.sources(caches),
                metrics=metrics.controller("pipeline"),
                rates=QUICK,
            ),
        ]

    @asynccontextmanager
    async def works(self) -> AsyncIterator[None]:
        """Everything runs while the block does."""
        async with running(self._caches.run(), self._recorder.run()):
            await self._caches.wait_synced()
            async with running(*(controller.run() for controller in self._controllers)):
                yield


class World:
    """What is there, and those who are not the operator."""

    def __init__(self, server: FakeApiServer) -> None:
        self.server = server
        for each in yaml.safe_load_all(SHIPPED.read_text()):
            if each["kind"] == "InferencePipeline":
                each["metadata"]["namespace"] = PIPELINE.namespace
            server.put(each)

    @property
    def status(self) -> dict[str, Any]:
        """Of the pipeline."""
        found: dict[str, Any] = self.server.need(INFERENCE_PIPELINES, PIPELINE).get("status") or {}
        return found

    def ready(self) -> str:
        """Reason of the pipeline's condition Ready."""
        found = [c["reason"] for c in self.status.get("conditions", []) if c["type"] == "Ready"]
        return found[0] if found else ""

    def children(self, kind: ResourceKind, stage: str) -> list[Manifest]:
        """What a stage has of a kind."""
        return [
            each
            for each in self.server.all(kind)
            if each["metadata"].get("labels", {}).get("omnistage.io/stage") == stage
        ]

    def run_pods(self) -> None:
        """Each Deployment has its replicas, all ready."""
        for deployment in self.server.all(DEPLOYMENTS):
            metadata, template = deployment["metadata"], deployment["spec"]["template"]
            for index in range(deployment["spec"]["replicas"]):
                self.server.put(
                    {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "metadata": {
                            "name": f"{metadata['name']}-{index}",
                            "namespace": metadata["namespace"],
                            "labels": template["metadata"]["labels"],
                        },
                        "spec": {"nodeName": "one"},
                        "status": ready_status(),
                    }
                )

    def gateway(self, name: str = "gateway-0") -> None:
        """A gateway lives."""
        self.server.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": GATEWAYS,
                    "labels": {"app.kubernetes.io/name": "omnistage-gateway"},
                },
                "spec": {"nodeName": "one"},
                "status": ready_status(),
            }
        )

    def gateway_says(self, name: str = "gateway-0") -> None:
        """The gateway follows what the pipeline's status says."""
        pipeline = copy.deepcopy(self.server.need(INFERENCE_PIPELINES, PIPELINE))
        status = pipeline["status"]
        status["gateways"] = [
            {
                "name": name,
                "turn": status["turn"],
                "serving": status["currentRevision"],
                "routable": [status["currentRevision"]],
                "inUse": [],
            }
        ]
        self.server.patch(INFERENCE_PIPELINES, PIPELINE, status=status)

    async def serve(self) -> None:
        """Until the pipeline is Ready."""
        self.gateway()
        await until(lambda: len(self.server.all(DEPLOYMENTS)) == 3)
        self.run_pods()
        await until(lambda: self.status.get("currentRevision"))
        self.gateway_says()
        await until(lambda: self.ready() == "Ready")

    def edit(self, kind: ResourceKind, key: ObjectKey, **spec: Any) -> None:
        """Somebody changes an object's spec."""
        before = self.server.need(kind, key)
        self.server.patch(kind, key, spec={**copy.deepcopy(before["spec"]), **spec})


def ready_status() -> dict[str, Any]:
    """Of a pod that serves."""
    return {
        "phase": "Running",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "True"},
        ],
        "containerStatuses": [
            {
                "name": "stage",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {}},
            }
        ],
    }


@pytest.fixture
def world(server: FakeApiServer) -> World:
    return World(server)


@pytest.fixture
def operator(api: Api, caches: Caches, metrics: OperatorMetrics) -> Operator:
    return Operator(api, caches, metrics)


async def test_a_pipeline_becomes_workloads_and_is_ready_when_a_gateway_reaches_them(
    world: World, operator: Operator
) -> None:
    async with operator.works():
        await world.serve()

    assert world.status["stagesReady"] == "3/3"
    for stage in (THINKER, TALKER, CODE2WAV):
        assert len(world.children(DEPLOYMENTS, stage)) == 1


async def test_nothing_is_written_when_nothing_changed(
    world: World, operator: Operator, server: FakeApiServer
) -> None:
    async with operator.works():
        await world.serve()
        before = server.writes
        runtime = {"apiVersion": "omnistage.io/v1alpha1", "kind": "StageRuntime"}
        server.put({**runtime, "metadata": {"name": "unrelated"}, "spec": {"engine": "simulated"}})
        template = server.all(PIPELINE_TEMPLATES)[0]
        server.patch(
            PIPELINE_TEMPLATES,
            ObjectKey("", template["metadata"]["name"]),
            metadata={**template["metadata"], "labels": {"looked": "at"}},
        )
        await until(lambda: server.open_watches)

    assert server.writes == before


async def test_an_edit_rolls_one_stage_and_the_old_revision_goes_last(
    world: World, operator: Operator
) -> None:
    async with operator.works():
        await world.serve()
        (old,) = world.children(DEPLOYMENTS, TALKER)

        world.edit(
            INFERENCE_PIPELINES,
            PIPELINE,
            stages=[{"name": "talker", "limits": {"maxRunning": 3}}],
        )
        await until(lambda: len(world.children(DEPLOYMENTS, TALKER)) == 2)
        assert len(world.children(DEPLOYMENTS, THINKER)) == 1

        world.run_pods()
        target = world.status["targetRevision"]
        await until(lambda: world.status["currentRevision"] == world.status["targetRevision"])
        assert world.children(DEPLOYMENTS, TALKER)
        world.gateway_says()
        await until(lambda: len(world.children(DEPLOYMENTS, TALKER)) == 1)

    (new,) = world.children(DEPLOYMENTS, TALKER)
    assert new["metadata"]["name"] != old["metadata"]["name"]
    assert target


async def test_a_stage_is_looked_at_when_its_runtime_changes(
    world: World, operator: Operator, server: FakeApiServer
) -> None:
    runtime = {
        "apiVersion": "omnistage.io/v1alpha1",
        "kind": "StageRuntime",
        "metadata": {"name": "node"},
        "spec": {"engine": "simulated", "image": "stage:1"},
    }
    server.put(runtime)
    world.edit(
        INFERENCE_PIPELINES, PIPELINE, stages=[{"name": "talker", "runtime": {"name": "node"}}]
    )
    async with operator.works():
        await world.serve()
        world.edit(STAGE_RUNTIMES, ObjectKey("", "node"), image="stage:2")

        await until(lambda: len(world.children(DEPLOYMENTS, TALKER)) == 2)


async def test_a_template_that_comes_late_heals_its_pipeline(
    world: World, operator: Operator, server: FakeApiServer
) -> None:
    (template,) = server.all(PIPELINE_TEMPLATES)
    server.remove(PIPELINE_TEMPLATES, ObjectKey("", template["metadata"]["name"]))
    async with operator.works():
        await until(lambda: world.ready() == "TemplateMissing")

        server.put({name: template[name] for name in ("apiVersion", "kind", "metadata", "spec")})

        await until(lambda: len(server.all(DEPLOYMENTS)) == 3)


async def test_a_gateway_that_is_gone_is_taken_out_of_the_status(
    world: World, operator: Operator, server: FakeApiServer
) -> None:
    async with operator.works():
        await world.serve()

        world.gateway("gateway-1")
        server.remove(PODS, ObjectKey(GATEWAYS, "gateway-0"))

        await until(lambda: world.ready() == "NotRoutable")
        assert server.requests["patch", "inferencepipelines/status"]


async def test_a_child_that_somebody_changes_or_deletes_comes_back(
    world: World, operator: Operator, server: FakeApiServer
) -> None:
    async with operator.works():
        await world.serve()
        (deployment,) = world.children(DEPLOYMENTS, TALKER)
        key = ObjectKey(PIPELINE.namespace, deployment["metadata"]["name"])

        server.remove(DEPLOYMENTS, key)
        await until(lambda: server.get(DEPLOYMENTS, key))

        world.edit(DEPLOYMENTS, key, replicas=7)
        await until(lambda: server.need(DEPLOYMENTS, key)["spec"]["replicas"] == 1)


async def test_it_goes_on_after_cut_watches_and_lost_history(
    world: World, operator: Operator, server: FakeApiServer
) -> None:
    async with operator.works():
        await world.serve()
        server.expire_watches()
        server.cut_watches()

        world.edit(
            INFERENCE_PIPELINES,
            PIPELINE,
            stages=[{"name": "talker", "limits": {"maxRunning": 3}}],
        )

        await until(lambda: len(world.children(DEPLOYMENTS, TALKER)) == 2)


async def test_refused_writes_are_made_up_for(
    world: World, operator: Operator, server: FakeApiServer
) -> None:
    server.faults.fail_next(409, times=5, verb="patch")
    server.faults.fail_next(500, times=5, verb="patch")
    async with operator.works():
        await world.serve()

    assert world.ready() == "Ready"


async def test_a_write_that_the_server_refuses_is_said_in_the_status(
    world: World, operator: Operator, server: FakeApiServer
) -> None:
    async with operator.works():
        await world.serve()
        server.faults.fail_next(422, times=10_000, verb="patch", resource="stages")
        world.edit(
            INFERENCE_PIPELINES,
            PIPELINE,
            stages=[{"name": "talker", "limits": {"maxRunning": 3}}],
        )

        await until(lambda: world.ready() == "WriteRefused")
        server.faults.heal()
        await until(lambda: world.ready() != "WriteRefused")


async def test_two_pipelines_of_one_name_are_told_apart_by_age(
    world: World, operator: Operator, server: FakeApiServer
) -> None:
    later = copy.deepcopy(server.need(INFERENCE_PIPELINES, PIPELINE))
    later["metadata"] = {
        "name": "imitation",
        "namespace": PIPELINE.namespace,
        "creationTimestamp": "2999-01-01T00:00:00Z",
    }
    async with operator.works():
        await until(world.ready)
        server.put(later)
        imitation = ObjectKey(PIPELINE.namespace, "imitation")

        await until(
            lambda: any(
                each["reason"] == "NameTaken"
                for each in (server.need(INFERENCE_PIPELINES, imitation).get("status") or {}).get(
                    "conditions", []
                )
            )
        )

    assert world.ready() != "NameTaken"


async def test_the_plan_names_every_stage(world: World, operator: Operator) -> None:
    async with operator.works():
        await until(lambda: world.status.get("targetRevision"))
        plans = [
            each
            for each in world.server.all(CONFIG_MAPS)
            if "omnistage.io/plan" in each["metadata"]["labels"]
        ]

    assert [each["metadata"]["labels"]["omnistage.io/plan"] for each in plans] == [
        world.status["targetRevision"]
    ]
