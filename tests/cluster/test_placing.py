"""Stages land on the nodes that they ask for, wait with a reason where there is none, and heal.

The scheduler is real, and so is the operator. Most nodes are simulated: they have accelerators, labels
and taints, and their pods run in word only. Each test says which. There is no gateway, since nothing
could be sent to such pods; a stage is as ready as it gets without one.
"""

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from cluster.doctoring import diagnosed
from cluster.laboratory.access import Cluster
from cluster.laboratory.nodes import SimulatedNode, simulated
from cluster.release import Product, installed
from omnistage_common.pipeline.remedies import remedies_of
from omnistage_common.pipeline.resources.status import StageReason

API: Final = "omnistage.io/v1alpha1"
GPU: Final = "nvidia.com/gpu"
PIPELINE: Final = "placed"
STAGE: Final = "placed-writer"
TAINT: Final = {"key": GPU, "value": "present", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def product(cluster: Cluster) -> Iterator[Product]:
    with installed(cluster, {"gateway": {"replicas": 0}, "operator": {"replicas": 1}}) as product:
        yield product


@pytest.fixture
def pool(product: Product) -> Iterator[str]:
    """A name of the test's own, for its nodes and its runtime; both are gone afterwards."""
    mark = f"pool-{uuid.uuid4().hex[:8]}"
    yield mark
    product.call("delete", "ipl", PIPELINE, "--ignore-not-found", "--cascade=foreground")
    product.cluster.call("delete", "stageruntime", mark, "--ignore-not-found")


def node(name: str, *, gpus: int = 0, **more: Any) -> SimulatedNode:
    """A simulated node, with or without accelerators."""
    return SimulatedNode(name=name, resources={GPU: gpus} if gpus else {}, **more)


def asks(product: Product, runtime: str, *, replicas: int = 1, **spec: Any) -> None:
    """Applies a pipeline of one stage, and the runtime that says what its replicas ask for."""
    resources = {"accelerator": {"resource": GPU}, "cpu": "10m"}
    product.apply(
        [
            {
                "apiVersion": API,
                "kind": "StageRuntime",
                "metadata": {"name": runtime},
                "spec": {"engine": "simulated", "resources": resources, **spec},
            },
            {
                "apiVersion": API,
                "kind": "InferencePipeline",
                "metadata": {"name": PIPELINE},
                "spec": {"topology": topology(), "stages": settings(runtime, replicas)},
            },
        ]
    )


def topology() -> dict[str, Any]:
    """A graph of one stage, whose engine computes nothing."""
    return {
        "stages": [
            {
                "name": "writer",
                "execution": "Autoregressive",
                "consumes": [{"name": "conversation", "kind": "conversation"}],
                "produces": [{"name": "text", "kind": "text"}],
                "defaults": {
                    "engine": "simulated",
                    "engineArgs": {"outputs": {"text": {"text": "word"}}},
                },
            }
        ],
        "outputs": [{"stage": "writer", "output": "text", "modality": "text"}],
    }


def settings(runtime: str, replicas: int, **engine_args: Any) -> list[dict[str, Any]]:
    """What the pipeline says of its stage; other engine arguments make another revision."""
    return [
        {
            "name": "writer",
            "runtime": {"name": runtime},
            "replicas": replicas,
            "engineArgs": engine_args,
        }
    ]


def wait_reason(product: Product, reason: StageReason) -> None:
    """Waits until stage and pipeline both give a reason."""
    product.wait(f"jsonpath={{.status.reason}}={reason.value}", f"stage/{STAGE}", seconds=15)
    ready = "jsonpath={.status.conditions[?(@.type=='Ready')].reason}"
    product.wait(f"{ready}={reason.value}", f"ipl/{PIPELINE}", seconds=15)


def wait_available(product: Product, *, seconds: int = 30) -> None:
    """Waits until all replicas of the pipeline's newest spec are ready."""
    generation = product.get("ipl", PIPELINE)["metadata"]["generation"]
    observed = f"jsonpath={{.status.observedGeneration}}={generation}"
    product.wait(observed, f"ipl/{PIPELINE}", seconds=seconds)
    product.wait("condition=StagesAvailable", f"ipl/{PIPELINE}", seconds=seconds)


def places(product: Product) -> dict[str, str]:
    """Pod -> its node; of those that are on one and not on their way out."""
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in product.get("pods", f"--selector=omnistage.io/stage={STAGE}")["items"]
        if "nodeName" in pod["spec"] and "deletionTimestamp" not in pod["metadata"]
    }


def message_of(obj: Mapping[str, Any], kind: str) -> str:
    """What a condition says."""
    found = (each for each in obj["status"]["conditions"] if each["type"] == kind)
    return str(next(found)["message"])


def test_a_stage_lands_only_on_nodes_that_have_its_accelerator(product: Product, pool: str) -> None:
    plain, gpus = f"plain-{pool}", f"gpus-{pool}"

    with simulated(product.cluster.kubeconfig, node(plain), node(gpus, gpus=2)):
        asks(product, pool, replicas=3)
        wait_reason(product, StageReason.INSUFFICIENT_CAPACITY)
        product.wait("jsonpath={.status.readyReplicas}=2", f"stage/{STAGE}")

        assert set(places(product).values()) == {gpus}
        status = product.get("stage", STAGE)["status"]
        assert "2 of 3 replicas ready" in status["message"]
        assert f"Insufficient {GPU}" in status["message"]


def test_selectors_and_tolerations_are_honoured(product: Product, pool: str) -> None:
    fitting = {"pool": pool, "accelerator": "h200"}
    foreign = {"key": "team", "value": "others", "effect": "NoSchedule"}
    nodes = (
        node(f"older-{pool}", gpus=8, labels={"pool": pool, "accelerator": "a100"}),
        node(f"foreign-{pool}", gpus=8, labels=fitting, taints=(TAINT, foreign)),
        node(f"fitting-{pool}", gpus=8, labels=fitting, taints=(TAINT,)),
    )

    with simulated(product.cluster.kubeconfig, *nodes):
        tolerations = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
        asks(product, pool, replicas=4, nodeSelector=fitting, tolerations=tolerations)
        wait_available(product)

        assert list(places(product).values()) == [f"fitting-{pool}"] * 4


def test_replicas_spread_over_nodes_and_so_do_those_of_the_next_revision(
    product: Product, pool: str
) -> None:
    nodes = [node(f"n{number}-{pool}", gpus=8, labels={"pool": pool}) for number in range(3)]

    with simulated(product.cluster.kubeconfig, *nodes):
        asks(product, pool, replicas=3, nodeSelector={"pool": pool})
        wait_available(product)
        first = places(product)
        product.patch(PIPELINE, {"stages": settings(pool, 3, steps=2)})
        wait_available(product)
        product.wait("jsonpath={.status.replicas}=3", f"stage/{STAGE}")
        second = places(product)

    assert sorted(first.values()) == [each.name for each in nodes]
    assert sorted(second.values()) == [each.name for each in nodes]
    assert not first.keys() & second.keys()


def test_a_stage_that_no_node_fits_says_so_and_heals_when_one_comes(
    product: Product, pool: str
) -> None:
    with simulated(product.cluster.kubeconfig, node(f"plain-{pool}")):
        asks(product, pool)
        wait_reason(product, StageReason.INSUFFICIENT_CAPACITY)

        said = message_of(product.get("ipl", PIPELINE), "Ready")
        assert said.startswith("stage writer: 0 of 1 replica ready; placed-writer-")
        assert f"Insufficient {GPU}" in said
        scheduler = product.get("pods")["items"][0]["status"]["conditions"][0]["message"]
        assert scheduler in said
        diagnosis = diagnosed(product, PIPELINE)
        assert diagnosis.code == 1
        assert diagnosis.says(scheduler)
        assert all(map(diagnosis.says, remedies_of("InsufficientCapacity")))

        with simulated(product.cluster.kubeconfig, node(f"gpus-{pool}", gpus=1)):
            wait_available(product)
            assert list(places(product).values()) == [f"gpus-{pool}"]


def test_a_lost_node_is_named_as_missing_and_another_takes_its_replicas(
    product: Product, pool: str
) -> None:
    with simulated(product.cluster.kubeconfig, node(f"first-{pool}", gpus=1)):
        asks(product, pool)
        wait_available(product)
    wait_reason(product, StageReason.INSUFFICIENT_CAPACITY)

    with simulated(product.cluster.kubeconfig, node(f"second-{pool}", gpus=1)):
        wait_available(product)
        assert list(places(product).values()) == [f"second-{pool}"]


@pytest.fixture
def real_accelerator(product: Product) -> Iterator[str]:
    """A real node that has one accelerator, in word only: a stage that asks for it really runs."""
    name = product.cluster.get("nodes")["items"][0]["metadata"]["name"]
    product.cluster.set_extended_resource(GPU, 1, name)
    yield name
    product.cluster.set_extended_resource(GPU, None, name)


def test_a_rollout_that_waits_for_the_only_accelerator_goes_on_in_place(
    product: Product, pool: str, real_accelerator: str
) -> None:
    """No node is simulated: on the only accelerator the process must end before the next starts."""
    asks(product, pool)
    wait_available(product)
    (before,) = places(product)

    product.patch(PIPELINE, {"stages": settings(pool, 1, steps=2)})
    wait_reason(product, StageReason.INSUFFICIENT_CAPACITY)
    assert list(places(product)) == [before]
    diagnosis = diagnosed(product, PIPELINE)
    assert diagnosis.says("set `rollout.strategy: InPlace` in the pipeline")

    product.patch(PIPELINE, {"rollout": {"strategy": "InPlace"}})
    wait_available(product)
    after = places(product)
    assert before not in after
    assert list(after.values()) == [real_accelerator]
    status = product.get("ipl", PIPELINE)["status"]
    assert status["currentRevision"] == status["targetRevision"]
    assert [each["revision"] for each in status["revisions"]] == [status["targetRevision"]]
