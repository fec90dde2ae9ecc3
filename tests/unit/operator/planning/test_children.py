"""The objects that make a stage, whole, as they are sent to the API server.

The files in `golden` hold them. A difference in a Deployment's `template` means that the next release
of the operator starts every pod of every cluster anew, although no user changed anything: put what is
new behind something that users write. The same goes for a revision. A difference in a name or a
selector means that a cluster refuses the change, or keeps the old object beside the new one. Anything
else is rewritten in place; then the file may follow. What an assignment says is left out: an existing
one is never written again.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fakes.stage_cluster import SETTINGS, Namespace, Object, runtime_object, stage_object
from omnistage_common.ids import EngineName
from omnistage_common.pipeline.assignments import read_assignment
from omnistage_common.pipeline.plan import Limits
from omnistage_common.pipeline.quantities import bytes_of
from omnistage_common.pipeline.resources import StageRuntimeSpec
from omnistage_operator.planning.decisions import Json
from omnistage_operator.planning.names import account_name, child_name, gang_name, service_name
from omnistage_operator.planning.requirements import (
    quantity_of,
    requirements,
    shared_memory_bytes,
)
from omnistage_operator.planning.settings import OperatorSettings, PullPolicy

GOLDEN = Path(__file__).parent / "golden"

GPU = runtime_object(
    engine="vllm",
    resources={
        "cpu": "8",
        "memory": "64Gi",
        "accelerator": {"resource": "nvidia.com/gpu", "count": 2},
    },
    rdma={"resource": "rdma/hca"},
    nodeSelector={"accelerator": "h200"},
    tolerations=[
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "team", "value": "voice"},
    ],
    sharedMemory="8Gi",
    env=[{"name": "VLLM_LOGGING_LEVEL", "value": "WARNING"}],
    engineArgs={"gpu_memory_utilization": 0.9},
)
LARGE = stage_object(
    engine=None,
    replicas=3,
    autoscaling={"minReplicas": 2, "maxReplicas": 8, "targetQueueWait": "1s500ms"},
    runtime={"name": "gpu"},
    model="hf://example/thinker@main",
    engineArgs={"max_num_seqs": 64},
    env=[
        {"name": "HF_TOKEN", "secretKey": {"name": "hub", "key": "token"}},
        {"name": "PRICE", "value": "$(POD_NAME) costs $5"},
    ],
    drain="1m500ms",
)
PRIVATE = OperatorSettings(
    stage_image="example.org/omnistage-stage:0.1.0",
    engine_images={EngineName("vllm"): "example.org/omnistage-stage:0.1.0-vllm"},
    pull_policy=PullPolicy.IF_NOT_PRESENT,
    pull_secrets=("registry",),
    gateway_namespace="omnistage",
    leader_worker_sets=True,
)


def small() -> Namespace:
    """A stage that says as little as it can."""
    return Namespace(stage_object())


def large() -> Namespace:
    """A stage that says everything."""
    namespace = Namespace(LARGE, settings=PRIVATE)
    namespace.runtime = GPU
    return namespace


def gang() -> Namespace:
    """A stage whose replicas span nodes."""
    parallelism = {"tensor": 4, "nodes": 2}
    return Namespace(stage_object(replicas=3, parallelism=parallelism), settings=PRIVATE)


def container_of(deployment: Object) -> Object:
    """The container of a workload's pods."""
    found: Object = deployment["spec"]["template"]["spec"]["containers"][0]
    return found


def without_assignment(children: Iterable[Json]) -> list[Json]:
    """Children without what the replicas are told."""
    return [{key: value for key, value in each.items() if key != "data"} for each in children]


@pytest.mark.parametrize("sample", [small, large, gang], ids=lambda sample: str(sample.__name__))
def test_children_are_what_they_were(sample: Any) -> None:
    golden = yaml.safe_load_all((GOLDEN / f"{sample.__name__}.yaml").read_text(encoding="utf-8"))

    assert without_assignment(sample().plan().apply) == list(golden)


def test_the_assignment_is_one_that_a_stage_reads(tmp_path: Path) -> None:
    namespace = large()
    namespace.settle()
    (config,) = namespace.of_kind("ConfigMap")
    file = tmp_path / "assignment.json"
    file.write_text(config["data"]["assignment.json"], encoding="utf-8")

    assignment = read_assignment(file)

    assert assignment.stage.revision == namespace.revision
    assert assignment.stage.engine_args == {"gpu_memory_utilization": 0.9, "max_num_seqs": 64}
    assert assignment.drain == 60.5


def test_an_assignment_does_not_tell_how_many_there_are() -> None:
    told = set()
    for replicas in (1, 5):
        namespace = Namespace(stage_object(replicas=replicas))
        namespace.settle()
        told.add(namespace.of_kind("ConfigMap")[0]["data"]["assignment.json"])

    assert len(told) == 1


def test_an_assignment_that_an_earlier_release_wrote_is_not_written_again() -> None:
    namespace = small()
    namespace.settle()
    (config,) = namespace.of_kind("ConfigMap")
    config["data"] = {"assignment.json": '{"of": "earlier"}'}

    namespace.settle()

    (after,) = namespace.of_kind("ConfigMap")
    assert after["data"] == {"assignment.json": '{"of": "earlier"}'}


def test_pods_meet_the_restricted_level() -> None:
    namespace = small()
    namespace.settle()
    pod = namespace.deployment()["spec"]["template"]["spec"]
    security = container_of(namespace.deployment())["securityContext"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert pod["automountServiceAccountToken"] is False
    assert {next(iter(set(each) - {"name"})) for each in pod["volumes"]} == {
        "configMap",
        "emptyDir",
    }


def test_a_secret_is_named_and_never_written() -> None:
    namespace = large()
    namespace.settle()
    env = {each["name"]: each for each in container_of(namespace.deployment())["env"]}

    assert env["HF_TOKEN"] == {
        "name": "HF_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}},
    }
    assert env["PRICE"]["value"] == "$$(POD_NAME) costs $$5"


def test_a_stage_cannot_say_who_its_pods_are() -> None:
    namespace = Namespace(
        stage_object(
            env=[{"name": "POD_IP", "value": "10.0.0.1"}, {"name": "HOME", "value": "/cache"}]
        )
    )
    namespace.settle()
    env = {each["name"]: each for each in container_of(namespace.deployment())["env"]}

    assert "valueFrom" in env["POD_IP"]
    assert env["HOME"]["value"] == "/cache"
    assert len(env) == len(container_of(namespace.deployment())["env"])


@pytest.mark.parametrize(
    ("image", "engine", "expected"),
    [
        ("example.org/own:1", "vllm", "example.org/own:1"),
        (None, "vllm", "example.org/omnistage-stage:0.1.0-vllm"),
        (None, "torch", "example.org/omnistage-stage:0.1.0"),
    ],
)
def test_the_image_is_the_runtimes_or_the_engines_or_the_installations(
    image: str | None, engine: str, expected: str
) -> None:
    namespace = Namespace(stage_object(engine=None, runtime={"name": "gpu"}), settings=PRIVATE)
    namespace.runtime = runtime_object(engine=engine, **({"image": image} if image else {}))
    namespace.settle()

    assert container_of(namespace.deployment())["image"] == expected


def test_a_stage_without_a_runtime_asks_for_the_memory_of_its_slab() -> None:
    namespace = Namespace(stage_object(limits={"slabBytes": "256Mi"}))
    namespace.settle()

    assert container_of(namespace.deployment())["resources"] == {"requests": {"memory": "320Mi"}}
    assert SETTINGS.pull_secrets == ()
    assert "imagePullSecrets" not in namespace.of_kind("ServiceAccount")[0]


LIMITS = Limits(max_running=1, max_queued=1, slab_bytes=64 << 20)


def asked(**fields: Any) -> dict[str, Any]:
    """The requirements of a runtime."""
    runtime = StageRuntimeSpec.model_validate({"engine": "vllm", **fields})
    return requirements(runtime, shared_memory_bytes(runtime, LIMITS))


def test_shared_memory_counts_as_memory() -> None:
    assert asked(resources={"memory": "4Gi"})["limits"] == {"memory": "4224Mi"}
    assert asked(resources={"memory": "4Gi"}, sharedMemory="1Gi")["requests"] == {"memory": "5Gi"}
    assert asked(resources={"memory": "1G"}, sharedMemory="1k")["limits"] == {
        "memory": "1000001000"
    }


def test_devices_are_asked_for_and_granted_alike() -> None:
    found = asked(
        resources={"cpu": "500m", "accelerator": {"resource": "nvidia.com/gpu"}},
        rdma={"resource": "rdma/hca", "count": 2},
    )

    assert found["limits"] == {"nvidia.com/gpu": "1", "rdma/hca": "2"}
    assert found["requests"] == {"cpu": "500m", "memory": "128Mi", **found["limits"]}


@given(st.integers(min_value=0, max_value=10**16))
def test_a_quantity_says_its_bytes_exactly(count: int) -> None:
    assert bytes_of(quantity_of(count)) == count


_NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
_REVISIONS = st.from_regex(r"[0-9a-f]{10}", fullmatch=True)


@given(_NAMES, _REVISIONS)
def test_names_of_children_are_labels_and_tell_what_they_are_of(name: str, revision: str) -> None:
    names = (child_name(name, revision), service_name(name, revision), account_name(name))

    assert all(len(each) <= 63 and each.strip("-") == each for each in names)
    assert names[1][0].isalpha()
    assert child_name(name, revision) != child_name(name, revision[::-1] + "0")
    assert account_name(name) not in {"default", name}


@given(_NAMES, _REVISIONS)
def test_what_a_gang_makes_of_its_name_is_a_label_too(name: str, revision: str) -> None:
    gang = gang_name(name, revision)

    assert gang[0].isalpha()
    assert gang != service_name(name, revision)
    # A group of the last of 1024 replicas is a StatefulSet, whose pods have a label with a digest.
    assert len(f"{gang}-1023-0123456789") <= 63


def test_a_name_that_begins_with_a_digit_is_still_a_service() -> None:
    assert service_name("3d", "0123456789") == "stage-3d-0123456789"
    assert service_name("thinker", "0123456789") == "thinker-0123456789"


def test_an_autoscaler_acts_on_the_stage_by_the_wait_for_a_place() -> None:
    namespace = large()
    namespace.settle()
    (scaler,) = namespace.of_kind("HorizontalPodAutoscaler")
    target = scaler["spec"]["metrics"][0]["pods"]["target"]

    assert scaler["spec"]["scaleTargetRef"]["kind"] == "Stage"
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (2, 8)
    assert target == {"type": "AverageValue", "averageValue": "1500m"}
    assert namespace.deployment()["spec"]["replicas"] == 3


@pytest.mark.parametrize(("wait", "value"), [("2s", "2"), ("200ms", "200m"), ("0s", "1m")])
def test_a_wait_is_a_quantity_above_zero(wait: str, value: str) -> None:
    namespace = Namespace(stage_object(autoscaling={"maxReplicas": 2, "targetQueueWait": wait}))
    namespace.settle()
    (scaler,) = namespace.of_kind("HorizontalPodAutoscaler")

    assert scaler["spec"]["metrics"][0]["pods"]["target"]["averageValue"] == value
