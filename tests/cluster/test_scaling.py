"""A stage that scales by itself: the cluster's own autoscaler reads the replicas' own metric.

The controller, the stages and what they measure are real; between them stands a server of the test's
own in place of Prometheus and its adapter. One replica computes one request at a time, so that two
clients already make requests wait.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster.laboratory.access import Cluster
from cluster.load import under_load
from cluster.metrics_adapter import serving_metrics
from cluster.release import Product, installed
from omnistage_operator.control.ownership import managers_of

pytestmark = [pytest.mark.timeout(150, func_only=True)]

MODEL = "scaling"
STAGE = f"{MODEL}-speaker"
HEAVY = 6
"""Clients at once: with one replica five requests wait, with three replicas three do."""
MOST = 3
SCALING = {"maxReplicas": MOST, "targetQueueWait": "100ms"}


def arguments(word: str, *, load_seconds: float = 0) -> dict[str, Any]:
    """Of an engine that needs a fifth of a second for an answer."""
    return {
        "steps": 1,
        "step_seconds": 0.2,
        "load_seconds": load_seconds,
        "outputs": {
            "text": {"text": f" {word}", "when": "step"},
            "speech": {"element_type": "int16", "shape": [2400], "rate_hz": 24000},
        },
    }


OBJECTS = [
    {
        "apiVersion": "omnistage.io/v1alpha1",
        "kind": "PipelineTemplate",
        "metadata": {"name": MODEL},
        "spec": {
            "stages": [
                {
                    "name": "speaker",
                    "execution": "Autoregressive",
                    "consumes": [{"name": "conversation", "kind": "conversation"}],
                    "produces": [
                        {"name": "text", "kind": "text"},
                        {"name": "speech", "kind": "waveform"},
                    ],
                    "defaults": {
                        "engine": "simulated",
                        "engineArgs": arguments("old"),
                        "limits": {"maxRunning": 1, "maxQueued": 256},
                    },
                }
            ],
            "outputs": [
                {"stage": "speaker", "output": "text", "modality": "text"},
                {"stage": "speaker", "output": "speech", "modality": "audio"},
            ],
        },
    },
    {
        "apiVersion": "omnistage.io/v1alpha1",
        "kind": "InferencePipeline",
        "metadata": {"name": MODEL},
        "spec": {
            "template": {"name": MODEL},
            "model": {"servedNames": [MODEL]},
            "stages": [{"name": "speaker", "autoscaling": SCALING}],
        },
    },
]


@pytest.fixture(scope="module")
def product(cluster: Cluster) -> Iterator[Product]:
    if not cluster.is_laboratory:
        pytest.skip("the API server does not reach a server of the test process")
    with installed(cluster, {"gateway": {"replicas": 1}, "operator": {"replicas": 1}}) as product:
        yield product


@pytest.fixture
def serving(product: Product) -> Iterator[Product]:
    """The product with a pipeline of one stage that scales; the pipeline is gone afterwards."""
    product.apply(OBJECTS)
    product.wait_ready(MODEL)
    yield product
    product.call("delete", "ipl", "--all", "--wait=false")
    product.wait_gone("pods", "--all", seconds=90)


@contextmanager
def counted(product: Product) -> Iterator[list[int]]:
    """Every number of replicas that is asked for while the block runs; to be read after it."""
    counts: list[int] = []
    cluster = product.cluster
    with subprocess.Popen(
        [
            *(cluster.kubectl, "get", f"stage/{STAGE}", f"--namespace={product.models}"),
            *("--watch", "--output=jsonpath={.spec.replicas} "),
        ],
        env=cluster.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as watch:
        try:
            yield counts
        finally:
            watch.terminate()
            said, _ = watch.communicate()
            counts += [int(number) for number in said.split()]


def test_a_stage_follows_its_load_and_no_request_is_lost(serving: Product) -> None:
    with serving_metrics(serving.cluster), counted(serving) as counts:
        with under_load(serving.url, MODEL, clients=HEAVY) as heavy:
            serving.wait(f"jsonpath={{.status.readyReplicas}}={MOST}", f"stage/{STAGE}")
            heavy.wait_answers(20)
        with under_load(serving.url, MODEL, clients=1) as light:
            serving.wait("jsonpath={.status.replicas}=1", f"stage/{STAGE}")
            light.wait_answers(5)

    assert heavy.failures == light.failures == []
    rising, falling = counts[: counts.index(MOST)], counts[counts.index(MOST) :]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    stage = serving.get("stage", STAGE, "--show-managed-fields")
    owners = {owner.name for owner in managers_of(stage, "spec", "replicas")}
    assert owners <= {"kube-controller-manager"}


def test_a_rollout_under_load_begins_with_as_many_replicas(serving: Product) -> None:
    changed = {"autoscaling": SCALING, "engineArgs": arguments("new", load_seconds=10)}
    with (
        serving_metrics(serving.cluster),
        under_load(serving.url, MODEL, clients=HEAVY) as load,
    ):
        serving.wait(f"jsonpath={{.status.readyReplicas}}={MOST}", f"stage/{STAGE}")
        old = serving.pods(STAGE)
        with counted(serving) as counts:
            serving.patch(MODEL, {"stages": [{"name": "speaker", **changed}]})
            serving.wait_ready(MODEL)
        load.wait_answers(20)

    assert load.failures == []
    assert set(load.answers) == {" old", " new"}
    assert set(counts) == {MOST}
    assert len(set(serving.pods(STAGE)) - set(old)) == MOST


def test_without_the_metric_a_stage_serves_with_what_it_has(serving: Product) -> None:
    serving.call("scale", "stage", STAGE, "--replicas=2")
    serving.wait("jsonpath={.status.readyReplicas}=2", f"stage/{STAGE}")

    with counted(serving) as counts, under_load(serving.url, MODEL, clients=HEAVY) as load:
        serving.wait("condition=ScalingActive=false", f"hpa/{STAGE}")
        load.wait_answers(20)

    assert load.failures == []
    assert set(counts) == {2}
    conditions = serving.get("hpa", STAGE)["status"]["conditions"]
    (active,) = (each for each in conditions if each["type"] == "ScalingActive")
    assert active["reason"] == "FailedGetPodsMetric"
    assert "no custom metrics API" in active["message"]
