"""What is wrong with a pipeline stands in its status, and the running revision keeps serving.

One pipeline serves on real nodes; each test breaks it as people do, reads why in status and in
`omnistage doctor`, is served all the while, and mends it.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import httpx
import pytest
from msgspec import Struct

from cluster.doctoring import diagnosed
from cluster.laboratory.access import Cluster
from cluster.products import image_name
from cluster.release import Product, installed
from omnistage_common.pipeline.remedies import remedies_of
from omnistage_common.pipeline.resources.status import StageReason

API: Final = "omnistage.io/v1alpha1"
PIPELINE: Final = "asked"
STAGE: Final = "asked-writer"
WRITER: Final = {
    "name": "writer",
    "execution": "Autoregressive",
    "consumes": [{"name": "conversation", "kind": "conversation"}],
    "produces": [{"name": "text", "kind": "text"}],
}
READY: Final = "jsonpath={.status.conditions[?(@.type=='Ready')].reason}"


def runtime(name: str, engine: str = "simulated", **spec: Any) -> dict[str, Any]:
    """A `StageRuntime`."""
    arguments = (
        {"engineArgs": {"outputs": {"text": {"text": "word"}}}} if engine == "simulated" else {}
    )
    return {
        "apiVersion": API,
        "kind": "StageRuntime",
        "metadata": {"name": name},
        "spec": {"engine": engine, **arguments, **spec},
    }


def topology(**defaults: str) -> dict[str, Any]:
    """A graph of one stage; what runs it is for a runtime to say."""
    return {
        "stages": [{**WRITER, "defaults": defaults}],
        "outputs": [{"stage": "writer", "output": "text", "modality": "text"}],
    }


def writer(**changed: Any) -> dict[str, Any]:
    """The part of a pipeline's spec that says how its stage runs."""
    return {"stages": [{"name": "writer", "runtime": {"name": "good"}, **changed}]}


def quota(pods: int) -> dict[str, Any]:
    """Room for so many pods in a namespace."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "room"},
        "spec": {"hard": {"pods": str(pods)}},
    }


GOOD: Final = {"topology": topology(), "template": None, **writer()}
RUNTIMES: Final = (
    runtime("good"),
    runtime("unpulled", image="omnistage.local/no-such-stage:0"),
    # The operator's program knows none of a stage's arguments, and ends.
    runtime("crashing", image=image_name("operator")),
    runtime("unequipped", engine="pocketsphinx"),
)


@pytest.fixture(scope="module")
def product(cluster: Cluster) -> Iterator[Product]:
    values = {"gateway": {"replicas": 1}, "operator": {"replicas": 1}}
    with installed(cluster, values) as product:
        product.apply(RUNTIMES)
        pipeline = {"apiVersion": API, "kind": "InferencePipeline"}
        spec = {name: value for name, value in GOOD.items() if value is not None}
        product.apply([{**pipeline, "metadata": {"name": PIPELINE}, "spec": spec}])
        yield product


@pytest.fixture
def serving(product: Product) -> Iterator[Product]:
    """The product with the pipeline as it should be; what a test leaves broken is put right."""
    product.wait_ready(PIPELINE)
    yield product
    product.patch(PIPELINE, GOOD)
    product.call("delete", "resourcequota,secret", "--all")
    product.call("delete", "stageruntime,stage", "nobody", "--ignore-not-found")


class Fault(Struct, frozen=True, kw_only=True):
    """Something that people get wrong."""

    reason: StageReason
    change: Mapping[str, Any]
    """Of the pipeline's spec."""
    says: str
    """Part of the message: the field, or the words of kubelet or engine."""
    besides: tuple[Mapping[str, Any], ...] = ()
    """What is there besides."""
    log: str = ""
    """What `omnistage doctor` tells of the log of who loads."""
    settled: str = ""
    """What the pod at fault waits for, where it goes to and fro."""


FAULTS: Final = (
    Fault(
        reason=StageReason.IMAGE_PULL,
        change=writer(runtime={"name": "unpulled"}),
        says="omnistage.local/no-such-stage:0",
    ),
    Fault(
        reason=StageReason.ENGINE_ARGS_REJECTED,
        change=writer(engineArgs={"step_seconds": -1}),
        says="engineArgs.step_seconds",
    ),
    # The runtime has no arguments: those of the one before must be gone, and not be null.
    Fault(
        reason=StageReason.MISSING_DEPENDENCY,
        change=writer(runtime={"name": "unequipped"}),
        says="pocketsphinx",
    ),
    Fault(
        reason=StageReason.CRASH_LOOP,
        change=writer(runtime={"name": "crashing"}),
        says="the following arguments are required: --stage-image",
        settled="CrashLoopBackOff",
    ),
    Fault(
        reason=StageReason.MODEL_LOADING,
        change=writer(engineArgs={"load_seconds": 3600}),
        says="its engine loads the model",
        log=": listening",
    ),
    Fault(
        reason=StageReason.CONFIG_ERROR,
        change=writer(env=[{"name": "TOKEN", "secretKey": {"name": "hub", "key": "token"}}]),
        says='secret "hub" not found',
    ),
    Fault(
        reason=StageReason.QUOTA_EXCEEDED,
        change=writer(engineArgs={"steps": 2}),
        says="exceeded quota: room",
        besides=(quota(1),),
    ),
    # The cluster has no such add-on; `test_gangs` gives it one.
    Fault(
        reason=StageReason.LEADER_WORKER_SET_MISSING,
        change=writer(parallelism={"tensor": 2, "nodes": 2}),
        says="parallelism.nodes",
    ),
    Fault(
        reason=StageReason.RUNTIME_MISSING,
        change=writer(runtime={"name": "nobody"}),
        says="nobody",
    ),
    Fault(
        reason=StageReason.TEMPLATE_MISSING,
        change={"topology": None, "template": {"name": "nobody"}},
        says="nobody",
    ),
    Fault(
        reason=StageReason.STAGE_MISSING,
        change={"stages": [{"name": "writer", "stageRef": {"name": "nobody"}}]},
        says="nobody",
    ),
    Fault(
        reason=StageReason.GRAPH_INVALID,
        # The API server sees one object at a time, and the runtime is another one.
        change={"topology": topology(engine="torch")},
        says="stage writer runs on `torch`",
    ),
)


def pods_of(product: Product) -> dict[str, str]:
    """Those of the revision that the stage is to run, not of one that still drains."""
    return product.pods(STAGE, product.get("stage", STAGE)["status"]["revision"])


def answer_of(product: Product) -> str:
    """What the pipeline answers now."""
    body = {"model": PIPELINE, "messages": [{"role": "user", "content": "hello"}]}
    said = httpx.post(f"{product.url}/v1/chat/completions", json=body, timeout=30)
    assert said.status_code == 200, said.text
    return str(said.json()["choices"][0]["message"]["content"])


def break_it(product: Product, fault: Fault) -> None:
    """Makes a mistake, and waits until the pipeline says which."""
    if fault.besides:
        product.apply(fault.besides)
    product.patch(PIPELINE, fault.change)
    if fault.settled:
        product.wait(f"{READY}={fault.reason.value}", f"ipl/{PIPELINE}", seconds=30)
        revision = product.get("stage", STAGE)["status"]["revision"]
        waiting = "jsonpath={.status.containerStatuses[0].state.waiting.reason}"
        chosen = f"--selector=omnistage.io/revision={revision}"
        product.wait(f"{waiting}={fault.settled}", "pods", chosen, seconds=30)
    product.wait(f"{READY}={fault.reason.value}", f"ipl/{PIPELINE}", seconds=30)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: each.reason.value)
def test_what_is_wrong_is_said_and_mended_while_the_running_revision_serves(
    serving: Product, fault: Fault
) -> None:
    before = serving.get("ipl", PIPELINE)["status"]
    pods = pods_of(serving)

    break_it(serving, fault)

    broken = serving.get("ipl", PIPELINE)
    (message,) = (
        each["message"] for each in broken["status"]["conditions"] if each["type"] == "Ready"
    )
    assert fault.says in message
    diagnosis = diagnosed(serving, PIPELINE)
    assert diagnosis.code == 1
    assert diagnosis.says(fault.reason.value)
    assert diagnosis.says(fault.says)
    assert all(map(diagnosis.says, remedies_of(fault.reason.value)))
    assert diagnosis.says(fault.log)
    assert broken["status"]["currentRevision"] == before["currentRevision"]
    assert answer_of(serving) == "word"

    serving.patch(PIPELINE, GOOD)
    serving.wait_ready(PIPELINE)

    after = serving.get("ipl", PIPELINE)["status"]
    assert after["currentRevision"] == before["currentRevision"]
    assert after["turn"] == before["turn"]
    assert pods.items() <= pods_of(serving).items()


Mending = Callable[[Product], None]


def a_secret_comes(product: Product) -> None:
    """What a variable names is there now."""
    product.call("create", "secret", "generic", "hub", "--from-literal=token=t")


def the_quota_is_raised(product: Product) -> None:
    """There is room for both revisions now."""
    product.apply([quota(4)])


def a_runtime_comes(product: Product) -> None:
    """What the stage runs on is there now."""
    product.apply([runtime("nobody")])


def a_stage_comes(product: Product) -> None:
    """What the pipeline shares is there now."""
    spec = {name: value for name, value in WRITER.items() if name != "name"}
    spare = {"apiVersion": API, "kind": "Stage", "metadata": {"name": "nobody"}}
    product.apply([{**spare, "spec": {**spec, "runtime": {"name": "good"}}}])


MENDED: Final[tuple[tuple[StageReason, Mending], ...]] = (
    (StageReason.CONFIG_ERROR, a_secret_comes),
    (StageReason.QUOTA_EXCEEDED, the_quota_is_raised),
    (StageReason.RUNTIME_MISSING, a_runtime_comes),
    (StageReason.STAGE_MISSING, a_stage_comes),
)


@pytest.mark.parametrize(("reason", "mend"), MENDED, ids=[mend.__name__ for _, mend in MENDED])
def test_what_was_missing_comes_and_the_change_is_served(
    serving: Product, reason: StageReason, mend: Mending
) -> None:
    (fault,) = (each for each in FAULTS if each.reason is reason)
    break_it(serving, fault)

    mend(serving)
    serving.wait_ready(PIPELINE)

    assert answer_of(serving) == "word"
