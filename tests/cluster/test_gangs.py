"""A stage whose replicas span nodes, on the real cluster with the real LeaderWorkerSet controller.

A gang's pods are real and have real processes; they share the one node, which no rule forbids. Their
engine is simulated: its processes meet, and each learns when another is gone.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import httpx
import pytest

from cluster.gangs import leader_worker_sets
from cluster.laboratory.access import Cluster
from cluster.load import under_load
from cluster.release import Product, installed

pytestmark = [pytest.mark.timeout(240, func_only=True)]

API: Final = "omnistage.io/v1alpha1"
PIPELINE: Final = "ganged"
STAGE: Final = "ganged-writer"
FEW: Final = {"gateway": {"replicas": 1}, "operator": {"replicas": 1}}


SPEECH: Final = {"element_type": "int16", "shape": [2400], "rate_hz": 24000, "when": "end"}


def writer(steps: int) -> dict[str, Any]:
    """The part of a pipeline's spec that says how its stage runs."""
    outputs = {"text": {"text": "word", "when": "end"}, "speech": SPEECH}
    own = {
        "name": "writer",
        "engineArgs": {"outputs": outputs, "steps": steps},
        "parallelism": {"tensor": 2, "nodes": 2},
    }
    return {"stages": [own]}


PIPELINE_OBJECT: Final = {
    "apiVersion": API,
    "kind": "InferencePipeline",
    "metadata": {"name": PIPELINE},
    "spec": {
        "topology": {
            "stages": [
                {
                    "name": "writer",
                    "execution": "Autoregressive",
                    "consumes": [{"name": "conversation", "kind": "conversation"}],
                    "produces": [
                        {"name": "text", "kind": "text"},
                        {"name": "speech", "kind": "waveform"},
                    ],
                    "defaults": {"engine": "simulated"},
                }
            ],
            "outputs": [
                {"stage": "writer", "output": "text", "modality": "text"},
                {"stage": "writer", "output": "speech", "modality": "audio"},
            ],
        },
        **writer(steps=1),
    },
}


@pytest.fixture(scope="module")
def product(cluster: Cluster) -> Iterator[Product]:
    """Installed after the cluster has come to know the kind: the operator looks at its start."""
    with leader_worker_sets(cluster), installed(cluster, FEW) as product:
        yield product


@pytest.fixture
def serving(product: Product) -> Iterator[Product]:
    """The product with a pipeline of one stage on two nodes; the pipeline is gone afterwards."""
    product.apply([PIPELINE_OBJECT])
    product.wait_ready(PIPELINE, seconds=90)
    yield product
    product.call("delete", "ipl", "--all", "--cascade=foreground")
    product.wait_gone("pods", "--all", seconds=90)


def answer_of(product: Product) -> str:
    """What the pipeline answers now."""
    body = {"model": PIPELINE, "messages": [{"role": "user", "content": "hello"}]}
    said = httpx.post(f"{product.url}/v1/chat/completions", json=body, timeout=30)
    assert said.status_code == 200, said.text
    return str(said.json()["choices"][0]["message"]["content"])


def members(product: Product) -> dict[str, str]:
    """Name -> uid of all pods of the stage's revision."""
    return product.pods(STAGE, product.get("stage", STAGE)["status"]["revision"])


def groups(names: Iterable[str]) -> set[str]:
    """The ends of names of pods: group, and number within it."""
    return {name.partition("-gang-")[2] for name in names}


def test_a_gang_is_one_replica_and_answers(serving: Product) -> None:
    status = serving.get("stage", STAGE)["status"]

    assert groups(members(serving)) == {"0", "0-1"}
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    assert answer_of(serving) == "word"
    slices = serving.get("endpointslices", f"--selector=omnistage.io/stage={STAGE}")["items"]
    (endpoint,) = (each for one in slices for each in one["endpoints"])
    assert endpoint["targetRef"]["name"].endswith("-gang-0")


def test_gangs_are_scaled_and_rolled_while_requests_are_answered(serving: Product) -> None:
    with under_load(serving.url, PIPELINE) as load:
        serving.call("scale", f"stage/{STAGE}", "--replicas=2")
        serving.wait("jsonpath={.status.readyReplicas}=2", f"stage/{STAGE}", seconds=90)
        assert groups(members(serving)) == {"0", "0-1", "1", "1-1"}
        old = members(serving)

        serving.patch(PIPELINE, writer(steps=2))
        serving.wait_ready(PIPELINE, seconds=120)
        serving.wait_gone(*(f"pod/{name}" for name in old), seconds=90)

        assert not old.keys() & members(serving).keys()
    assert load.failures == []
    assert set(load.answers) == {"word"}


def test_a_lost_follower_takes_its_gang_with_it_and_the_gang_comes_back(serving: Product) -> None:
    serving.wait_ready(PIPELINE, seconds=90)
    before = members(serving)
    follower = next(name for name in before if name.endswith("-0-1"))

    serving.call("delete", "pod", follower, "--wait=false")
    leader = follower.removesuffix("-1")
    while members(serving).get(leader, before[leader]) == before[leader]:
        time.sleep(0.2)
    serving.wait_ready(PIPELINE, seconds=90)

    assert answer_of(serving) == "word"


def test_deleting_the_pipeline_leaves_no_gang(serving: Product) -> None:
    serving.call("delete", "ipl", PIPELINE, "--cascade=foreground")

    left = serving.get("leaderworkersets,statefulsets")["items"]
    assert [each["metadata"]["name"] for each in left] == []
