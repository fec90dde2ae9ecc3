"""The product on a real cluster: applied, asked, scaled, shared, rolled, reverted and gone again.

Every stage is a real container; the engines are simulated, so that what is measured is the platform.
"""

import copy
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from cluster.laboratory.access import Cluster
from cluster.load import under_load
from cluster.products import ROOT
from cluster.release import Product, installed, pipeline_objects

pytestmark = [pytest.mark.timeout(300, func_only=True)]

MODEL = "simulated-omni"
PIPELINE = ROOT / "deploy" / "pipelines" / "simulated-omni.yaml"
THINKER, TALKER, CODE2WAV = (f"{MODEL}-{name}" for name in ("thinker", "talker", "code2wav"))
WORDS = 16
QUIET = {"events", "endpointslices", "endpoints", "leases"}
"""Kinds that follow others by themselves."""


@pytest.fixture(scope="module")
def product(cluster: Cluster) -> Iterator[Product]:
    with installed(cluster) as product:
        yield product


@pytest.fixture
def serving(product: Product) -> Iterator[Product]:
    """The product with one pipeline that serves; the pipeline is gone afterwards."""
    product.apply(pipeline_objects(PIPELINE))
    product.wait_ready(MODEL)
    yield product
    product.call("delete", "ipl,stg", "--all", "--wait=false")
    product.wait_gone("pods", "--all", seconds=90)


def speaks(word: str, *, seconds: float = 0.0) -> dict[str, Any]:
    """What to set so that the thinker says another word, at another pace."""
    arguments = {
        "steps": WORDS,
        "step_seconds": seconds,
        "outputs": {
            "text": {"text": f" {word}", "when": "step"},
            "hidden": {"element_type": "float32", "shape": [16, 64], "when": "end"},
        },
    }
    return {"stages": [{"name": "thinker", "engineArgs": arguments}]}


def revision(product: Product) -> str:
    """Where new requests go."""
    return str(product.get("ipl", MODEL)["status"]["currentRevision"])


def uids(product: Product) -> dict[str, dict[str, str]]:
    """Stage -> its pods."""
    return {stage: product.pods(stage) for stage in (THINKER, TALKER, CODE2WAV)}


def settle(product: Product, words: dict[str, Any] | None = None) -> None:
    """Waits until the spec is served and nothing older is left."""
    if words is not None:
        product.patch(MODEL, words)
    product.wait_ready(MODEL)
    product.wait(
        "jsonpath={.status.conditions[?(@.type=='Progressing')].status}=False", f"ipl/{MODEL}"
    )


def test_the_official_client_reads_and_hears_an_answer(serving: Product) -> None:
    client = openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0)

    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "wav"},
    )

    message = answer.choices[0].message
    assert message.content == " word" * WORDS
    assert message.audio is not None
    assert message.audio.data
    assert [model.id for model in client.models.list()] == [MODEL]


def test_doctor_finds_nothing_wrong(serving: Product) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "omnistage_cli", "doctor", MODEL, f"--namespace={serving.models}"],
        env=serving.cluster.environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert said.returncode == 0, said.stderr
    assert "is ready (3/3 stages)" in said.stdout


def test_a_scaled_stage_serves_with_all_its_replicas(serving: Product) -> None:
    serving.call("scale", "stage", TALKER, "--replicas=3")
    serving.wait("jsonpath={.status.readyReplicas}=3", f"stage/{TALKER}")

    assert len(serving.pods(TALKER)) == 3
    settle(serving)
    with under_load(serving.url, MODEL) as load:
        load.wait_answers(20)
        serving.call("scale", "stage", TALKER, "--replicas=1")
        serving.wait("jsonpath={.status.replicas}=1", f"stage/{TALKER}", seconds=90)
        load.wait_answers(20)

    assert load.failures == []
    assert serving.get("ipl", MODEL)["status"]["stages"][1]["desired"] == 1


def test_a_rolled_stage_loses_no_request_and_no_other_stage_is_touched(serving: Product) -> None:
    before, old = uids(serving), revision(serving)

    with under_load(serving.url, MODEL) as load:
        settle(serving, speaks("new"))
        load.wait_answers(20)
    after = uids(serving)

    assert load.failures == []
    assert set(load.answers) == {" word" * WORDS, " new" * WORDS}
    assert load.answers[-1] == " new" * WORDS
    assert revision(serving) != old
    assert not set(before[THINKER].values()) & set(after[THINKER].values())
    assert (before[TALKER], before[CODE2WAV]) == (after[TALKER], after[CODE2WAV])


def test_a_request_stays_on_its_revision_to_the_end(serving: Product) -> None:
    settle(serving, speaks("slow", seconds=0.1))

    with under_load(serving.url, MODEL) as load:
        settle(serving, speaks("quick"))
        load.wait_answers(10)

    assert load.failures == []
    assert set(load.answers) == {" slow" * WORDS, " quick" * WORDS}


def test_an_edit_that_is_taken_back_half_way_starts_no_serving_pod_anew(serving: Product) -> None:
    before, old = uids(serving), revision(serving)
    broken = speaks("never")
    broken["stages"][0]["engineArgs"]["load_seconds"] = 3600

    with under_load(serving.url, MODEL) as load:
        serving.patch(MODEL, broken)
        serving.wait("jsonpath={.status.reason}=ModelLoading", f"stage/{THINKER}")
        serving.patch(MODEL, {"stages": None})
        settle(serving)
        load.wait_answers(10)

    assert load.failures == []
    assert set(load.answers) == {" word" * WORDS}
    assert revision(serving) == old
    assert uids(serving) == before


def test_a_change_that_cannot_start_leaves_the_running_revision_serving(serving: Product) -> None:
    old = revision(serving)

    serving.patch(MODEL, {"stages": [{"name": "thinker", "engineArgs": {"no_such": 1}}]})
    serving.wait("jsonpath={.status.reason}=EngineArgsRejected", f"stage/{THINKER}")

    assert "no_such" in serving.get("stage", THINKER)["status"]["message"]
    assert revision(serving) == old
    with under_load(serving.url, MODEL) as load:
        load.wait_answers(10)
    assert load.failures == []


def test_two_pipelines_share_a_stage(serving: Product) -> None:
    template, _ = pipeline_objects(PIPELINE)
    stage = copy.deepcopy(serving.get("stage", CODE2WAV))
    voice = {
        "apiVersion": stage["apiVersion"],
        "kind": "Stage",
        "metadata": {"name": "voice"},
        "spec": stage["spec"],
    }
    others = [
        {
            "apiVersion": stage["apiVersion"],
            "kind": "InferencePipeline",
            "metadata": {"name": name},
            "spec": {
                "template": {"name": template["metadata"]["name"]},
                "stages": [{"name": "code2wav", "stageRef": {"name": "voice"}}],
            },
        }
        for name in ("first", "second")
    ]

    serving.apply([voice, *others])
    for name in ("first", "second"):
        serving.wait_ready(name)

    assert len(serving.pods("voice")) == 1
    for name in ("first", "second"):
        with under_load(serving.url, name, clients=2) as load:
            load.wait_answers(4)
        assert load.failures == []
    serving.call("delete", "ipl", "first")
    with under_load(serving.url, "second", clients=2) as load:
        load.wait_answers(4)
    assert load.failures == []
    assert len(serving.pods("voice")) == 1


def test_restarted_operators_and_gateways_lose_no_request(serving: Product) -> None:
    cluster, before = serving.cluster, uids(serving)
    place = f"--namespace={serving.namespace}"

    with under_load(serving.url, MODEL) as load:
        for component in ("operator", "gateway"):
            deployment = f"deployment/{serving.name}-{component}"
            cluster.call("rollout", "restart", deployment, place)
            cluster.call("rollout", "status", deployment, place, "--timeout=120s", seconds=130)
        load.wait_answers(20)

    assert load.failures == []
    assert uids(serving) == before


def test_a_killed_operator_goes_on_where_it_was(serving: Product) -> None:
    cluster, place = serving.cluster, f"--namespace={serving.namespace}"
    with under_load(serving.url, MODEL) as load:
        serving.patch(MODEL, speaks("new"))
        operators = "--selector=app.kubernetes.io/name=omnistage-operator"
        cluster.call("delete", "pods", operators, place, "--grace-period=0", "--force")
        settle(serving)
        load.wait_answers(10)

    assert load.failures == []
    assert load.answers[-1] == " new" * WORDS


def test_a_killed_stage_costs_its_requests_and_no_other(serving: Product) -> None:
    if not serving.cluster.is_laboratory:
        pytest.skip("the node's processes are out of reach")
    settle(serving, speaks("slow", seconds=0.1))
    (pod,) = serving.pods(THINKER)

    with (
        httpx.Client(timeout=60) as client,
        client.stream(
            "POST",
            f"{serving.url}/v1/chat/completions",
            json={
                "model": MODEL,
                "messages": [{"role": "user", "content": "hello"}],
                "stream": True,
            },
        ) as answer,
    ):
        lines = answer.iter_lines()
        next(line for line in lines if '"content":" slow"' in line)
        os.kill(process_of(pod), signal.SIGKILL)
        rest = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

    error = json.loads(rest[-1])["error"]
    assert error["code"] == "stage_unavailable"
    assert rest[-1] != "[DONE]"
    serving.wait("jsonpath={.status.containerStatuses[0].restartCount}=1", f"pod/{pod}")
    settle(serving)
    with under_load(serving.url, MODEL, clients=2) as load:
        load.wait_answers(4)
    assert load.failures == []


def process_of(pod: str) -> int:
    """The process of a stage's pod, as the host numbers it."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if pod.encode() in words and any(b"omnistage-stage" in word for word in words):
            return int(folder.name)
    raise AssertionError(f"no process of {pod}")


def test_a_deleted_pipeline_leaves_nothing(product: Product) -> None:
    product.apply(pipeline_objects(PIPELINE))
    product.wait_ready(MODEL)

    product.call("delete", "ipl", MODEL)
    product.wait_gone("stages,deployments,pods,services,networkpolicies", "--all", seconds=90)

    assert left_in(product) == {"configmap/kube-root-ca.crt", "serviceaccount/default"}


def left_in(product: Product) -> set[str]:
    """Everything in the pipelines' namespace, of every kind that there is."""
    kinds = product.cluster.call("api-resources", "--namespaced", "--verbs=list", "--output=name")
    names = ",".join(kind for kind in kinds.split() if kind.split(".")[0] not in QUIET)
    return set(product.call("get", names, "--output=name").split())
