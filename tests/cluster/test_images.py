"""The product's images run as the cluster's strictest level wants them to, and compute.

They are really built from the Dockerfiles and run on a real node; the stages simulate their engines.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

import pytest

from cluster.laboratory.access import Cluster
from cluster.products import Component, provide_image
from fakes.pipelines import listening_pipeline
from omnistage_common.pipeline.assignments import assignment_of, encode_assignment
from omnistage_common.pipeline.loading import load_text
from omnistage_common.pipeline.plan import PipelinePlan, encode_plan
from omnistage_common.pipeline.resolver import resolve

COMPONENTS: Final = get_args(Component)
SAFE: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    # No user is named: the kubelet takes the image's and refuses root.
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
FACTS: Final = """
import getpass, json, os, pathlib, shutil
def writable(folder):
    try:
        pathlib.Path(folder, "file").touch()
    except OSError as error:
        return error.strerror
    return True
print(json.dumps({
    "user": os.getuid(),
    "group": os.getgid(),
    "root": writable("/"),
    "home": writable(pathlib.Path.home()),
    "compilers": [name for name in ("cc", "gcc", "g++", "clang", "uv") if shutil.which(name)],
    "secrets": [name for name in ("/run/build-ca.crt", "/etc/pip.conf") if os.path.exists(name)
                and os.path.getsize(name)],
}))
"""
MINUTES: Final = 15 * 60.0
"""Time for a first build of all images."""

pytestmark = pytest.mark.timeout(MINUTES)


def pod(name: str, image: str, **container: Any) -> dict[str, Any]:
    """A pod of one container, as strict as pods can be."""
    mounts = container.pop("volumeMounts", [])
    main = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "securityContext": SAFE,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *mounts],  # noqa: S108 (its own)
        **container,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [main],
            "volumes": [
                {"name": "tmp", "emptyDir": {}},
                *(
                    {"name": mount["name"], "configMap": {"name": mount["name"]}}
                    for mount in mounts
                ),
            ],
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
        },
    }


def files(name: str, contents: Mapping[str, bytes]) -> dict[str, Any]:
    """A ConfigMap of files."""
    data = {file: content.decode() for file, content in contents.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def output(cluster: Cluster, namespace: str, name: str) -> str:
    """What a pod wrote until it ended well."""
    done = "jsonpath={.status.phase}=Succeeded"
    cluster.wait(done, f"pod/{name}", f"--namespace={namespace}")
    return cluster.call("logs", name, f"--namespace={namespace}")


@pytest.fixture
def strict_namespace(cluster: Cluster, namespace: str) -> str:
    """A namespace that takes no pod below the level `restricted`."""
    level = "pod-security.kubernetes.io/enforce=restricted"
    cluster.call("label", "namespace", namespace, level)
    return namespace


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_container_is_nobody_special_on_a_root_that_is_read_only(
    cluster: Cluster, strict_namespace: str, component: Component
) -> None:
    image = provide_image(cluster, component)

    facts = pod("facts", image, command=["python", "-c", FACTS])
    cluster.apply(facts, namespace=strict_namespace)

    assert json.loads(output(cluster, strict_namespace, "facts")) == {
        "user": 65532,
        "group": 65532,
        "root": "Read-only file system",
        "home": True,
        "compilers": [],
        "secrets": [],
    }


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_entry_point_explains_itself(
    cluster: Cluster, strict_namespace: str, component: Component
) -> None:
    image = provide_image(cluster, component)

    cluster.apply(pod("help", image, args=["--help"]), namespace=strict_namespace)

    usage = output(cluster, strict_namespace, "help")
    assert usage.startswith(f"usage: omnistage-{component}")


@pytest.fixture
def plan() -> PipelinePlan:
    """Two simulated stages, of which one makes text and the other speech of it."""
    resources = load_text(listening_pipeline(), file="listening.yaml")
    return resolve(resources)


def stage_pods(plan: PipelinePlan, image: str) -> list[dict[str, Any]]:
    """One pod for each stage, ready when its engine is, and its assignment."""
    assignments = {
        f"{stage.name}.json": encode_assignment(assignment_of(plan, stage.name))
        for stage in plan.stages
    }
    pods = [
        pod(
            stage.name,
            image,
            args=[
                f"--assignment=/etc/omnistage/{stage.name}.json",
                "--listen=$(POD_IP):7001",
                "--metrics=0.0.0.0:9001",
            ],
            env=[{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            readinessProbe={"grpc": {"port": 7001}, "periodSeconds": 1},
            volumeMounts=[{"name": "assignments", "mountPath": "/etc/omnistage"}],
        )
        for stage in plan.stages
    ]
    return [files("assignments", assignments), *pods]


def gateway_pod(plan: PipelinePlan, addresses: Mapping[str, str], image: str) -> Sequence[Any]:
    """A gateway that is told where the stages are, and its files."""
    replicas = [
        {"stage": stage, "replica": f"{stage}-0", "address": f"{address}:7001"}
        for stage, address in addresses.items()
    ]
    endpoints = json.dumps({"replicas": replicas}).encode()
    gateway = pod(
        "gateway",
        image,
        args=[
            "--plan=/etc/omnistage/plan.json",
            "--endpoints=/etc/omnistage/endpoints.json",
            "--listen=0.0.0.0:8000",
            "--slab-mib=16",
        ],
        readinessProbe={"httpGet": {"path": "/readyz", "port": 8000}, "periodSeconds": 1},
        volumeMounts=[{"name": "plan", "mountPath": "/etc/omnistage"}],
    )
    contents = {"plan.json": encode_plan(plan), "endpoints.json": endpoints}
    return [files("plan", contents), gateway]


def test_stages_and_a_gateway_in_containers_answer_with_text_and_speech(
    cluster: Cluster, strict_namespace: str, plan: PipelinePlan
) -> None:
    here = f"--namespace={strict_namespace}"
    cluster.apply(*stage_pods(plan, provide_image(cluster, "stage")), namespace=strict_namespace)
    stages = [f"pod/{stage.name}" for stage in plan.stages]
    cluster.wait("condition=Ready", *stages, here)
    addresses = {
        each["metadata"]["name"]: each["status"]["podIP"]
        for each in cluster.get("pods", here)["items"]
    }
    gateway = gateway_pod(plan, addresses, provide_image(cluster, "gateway"))
    cluster.apply(*gateway, namespace=strict_namespace)
    cluster.wait("condition=Ready", "pod/gateway", here)

    request = {
        "model": plan.served_names[0],
        "messages": [{"role": "user", "content": "Hello"}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "default", "format": "wav"},
    }
    ask = (
        "import sys, urllib.request as r; print(r.urlopen(r.Request("
        "'http://127.0.0.1:8000/v1/chat/completions', data=sys.argv[1].encode(),"
        "headers={'content-type': 'application/json'})).read().decode())"
    )
    command = ["python", "-c", ask, json.dumps(request)]
    answer = json.loads(cluster.call("exec", "gateway", here, "--", *command))

    message = answer["choices"][0]["message"]
    assert "word" in message["audio"]["transcript"]
    assert message["audio"]["data"]
