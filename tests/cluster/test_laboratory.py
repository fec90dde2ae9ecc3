"""The cluster that the other tests stand on does what they take for granted.

The one real node runs real containers. Where a test simulates a node, its name says so.
"""

import http.client
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from cluster.laboratory import images
from cluster.laboratory.access import LOAD_IMAGE, Cluster, at_hand
from cluster.laboratory.building import Report
from cluster.laboratory.commands import run
from cluster.laboratory.nodes import SIMULATED_LABEL, SimulatedNode, simulated
from omnistage_common.errors import SetupError

GPU: Final = "nvidia.com/gpu"
ASLEEP: Final = ["sleep", "infinity"]
SAFE: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What the Pod Security level `restricted` asks for, and a read-only root."""


@pytest.fixture(scope="module")
def base_image(cluster: Cluster) -> str:
    """The base image, on the nodes."""
    cluster.load_image(images.BASE)
    return images.BASE


def pod(name: str, image: str, command: list[str], **spec: Any) -> dict[str, Any]:
    """A pod of one container that ends at once when it is told to."""
    limits = spec.pop("resources", {})
    container = {
        "name": "main",
        "image": image,
        "command": command,
        "imagePullPolicy": "Never",
        "resources": {"limits": limits},
        "securityContext": SAFE,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def web_server(image: str) -> list[dict[str, Any]]:
    """A deployment of two web servers with probes, and a service in front of them."""
    command = ["python3", "-m", "http.server", "8000", "--directory", "/etc"]
    probe = {"httpGet": {"path": "/hostname", "port": 8000}, "periodSeconds": 1}
    template = pod("web", image, command)
    template["spec"]["containers"][0] |= {"startupProbe": probe, "readinessProbe": probe}
    selector = {"app": "web"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": selector},
            "template": {"metadata": template["metadata"], "spec": template["spec"]},
        },
    }
    del template["metadata"]["name"]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": selector, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    return [deployment, service]


@contextmanager
def with_gpus(cluster: Cluster, node: str, count: int) -> Iterator[None]:
    """A real node claims to have some."""
    cluster.set_extended_resource(GPU, count, node)
    try:
        yield
    finally:
        cluster.set_extended_resource(GPU, None, node)


def test_the_node_is_ready_and_every_server_says_its_version(cluster: Cluster) -> None:
    version = cluster.call("version", "--output=json")

    assert '"gitVersion": "v1.' in version
    nodes = cluster.get("nodes")["items"]
    assert "Ready" in {c["type"] for n in nodes for c in n["status"]["conditions"]}


def test_a_deployment_answers_by_its_service_from_the_host_and_by_name_from_a_pod(
    cluster: Cluster, namespace: str, base_image: str
) -> None:
    client = pod("client", base_image, ASLEEP)
    cluster.apply(*web_server(base_image), client, namespace=namespace)
    cluster.wait("condition=Available", "deployment/web", f"--namespace={namespace}")
    cluster.wait("condition=Ready", "pod/client", f"--namespace={namespace}")

    ask = f"import urllib.request as r; print(r.urlopen('http://web.{namespace}/hostname').status)"
    by_name = cluster.call("exec", "client", f"--namespace={namespace}", "--", "python3", "-c", ask)

    assert by_name.strip() == "200"
    if cluster.is_laboratory:
        service = cluster.get("service", "web", f"--namespace={namespace}")
        assert status_of(f"http://{service['spec']['clusterIP']}/hostname") == 200


def status_of(url: str) -> int:
    """The status of an answer over plain HTTP."""
    with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 (http, from the test)
        assert isinstance(response, http.client.HTTPResponse)
        return response.status


def test_the_host_reaches_pods_and_pods_reach_their_api_server(
    cluster: Cluster, namespace: str, base_image: str
) -> None:
    if not cluster.is_laboratory:
        pytest.skip("the network of a cluster of one's own may be closed to the host")
    ask = (
        "import socket, ssl; "
        "ssl.create_default_context(cafile='/run/secrets/kubernetes.io/serviceaccount/ca.crt')"
        ".wrap_socket(socket.create_connection(('kubernetes.default.svc', 443)), "
        "server_hostname='kubernetes.default.svc'); "
        "import http.server as h; "
        "h.HTTPServer(('', 8000), h.SimpleHTTPRequestHandler).serve_forever()"
    )
    cluster.apply(pod("server", base_image, ["python3", "-c", ask]), namespace=namespace)
    cluster.wait("condition=Ready", "pod/server", f"--namespace={namespace}")
    cluster.wait("jsonpath={.status.podIP}", "pod/server", f"--namespace={namespace}")

    address = cluster.get("pod", "server", f"--namespace={namespace}")["status"]["podIP"]

    assert eventually_open(address, 8000)


def eventually_open(address: str, port: int) -> bool:
    """Whether a connection is taken; refused ones are tried again while the server starts."""
    command = f"until (exec 3<>/dev/tcp/{address}/{port}) 2>/dev/null; do sleep 0.05; done"
    run("bash", "-c", command, seconds=20)
    return True


def test_a_pod_waits_for_an_accelerator_and_starts_when_its_node_has_one(
    cluster: Cluster, namespace: str, base_image: str
) -> None:
    here = f"--namespace={namespace}"
    cluster.apply(pod("greedy", base_image, ASLEEP, resources={GPU: 2}), namespace=namespace)
    cluster.wait("condition=PodScheduled=False", "pod/greedy", here)
    assert f"Insufficient {GPU}" in cluster.call("describe", "pod", "greedy", here)

    node = cluster.get("nodes")["items"][0]["metadata"]["name"]
    with with_gpus(cluster, node, 2):
        cluster.wait("condition=Ready", "pod/greedy", here)
        assert cluster.get("pod", "greedy", here)["spec"]["nodeName"] == node
        cluster.call("delete", "pod", "greedy", here)


def test_a_simulated_node_takes_the_pods_that_ask_for_it_and_ends_them(
    cluster: Cluster, namespace: str
) -> None:
    here = f"--namespace={namespace}"
    taint = {"key": "simulated", "value": "yes", "effect": "NoSchedule"}
    node = SimulatedNode(
        name=f"gpu-{namespace}", labels={"pool": namespace}, taints=(taint,), resources={GPU: 8}
    )
    spec = {
        "nodeSelector": {"pool": namespace, SIMULATED_LABEL: "true"},
        "tolerations": [{"key": "simulated", "operator": "Exists"}],
    }
    pods = [
        pod(f"p{number}", "no.such/image", [], resources={GPU: 2}, **spec) for number in range(5)
    ]

    with simulated(cluster.kubeconfig, node):
        cluster.apply(*pods, namespace=namespace)
        cluster.wait(
            "jsonpath={.status.conditions[?(@.type=='PodScheduled')].reason}=Unschedulable",
            "pods",
            "--selector=app=p4",
            here,
        )
        running = [f"pod/p{number}" for number in range(4)]
        cluster.wait("condition=Ready", *running, here)
        addresses = {p["status"].get("podIP") for p in cluster.get("pods", here)["items"]}
        assert len(addresses - {None}) == 4

        cluster.call("delete", "pod/p0", here)
        cluster.wait("condition=Ready", "pod/p4", here)

    assert f"gpu-{namespace}" not in cluster.call("get", "nodes", "--output=name")
    left = cluster.get("pods", here)["items"]
    assert [p for p in left if p["spec"].get("nodeName") == node.name] == []


def test_a_hundred_pods_run_on_simulated_nodes_and_keep_their_addresses(
    cluster: Cluster, namespace: str
) -> None:
    here = f"--namespace={namespace}"
    nodes = [SimulatedNode(name=f"s{n}-{namespace}", labels={"pool": namespace}) for n in range(4)]
    template = pod("many", "no.such/image", [], nodeSelector={"pool": namespace})
    del template["metadata"]["name"]
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "many"},
        "spec": {
            "replicas": 100,
            "selector": {"matchLabels": {"app": "many"}},
            "template": {"metadata": template["metadata"], "spec": template["spec"]},
        },
    }

    with simulated(cluster.kubeconfig, *nodes):
        cluster.apply(deployment, namespace=namespace)
        cluster.wait("jsonpath={.status.readyReplicas}=100", "deployment/many", here)
        first = {p["metadata"]["name"]: p["status"]["podIP"] for p in listed(cluster, here)}
        cluster.call("delete", "deployment", "many", "--cascade=orphan", here)
        again = {p["metadata"]["name"]: p["status"]["podIP"] for p in listed(cluster, here)}
        assert first == again
        assert len(set(first.values())) == 100


def listed(cluster: Cluster, *options: str) -> list[dict[str, Any]]:
    """The pods of a namespace."""
    items: list[dict[str, Any]] = cluster.get("pods", *options)["items"]
    return items


def test_simulated_nodes_on_a_server_that_is_not_there_fail_at_once(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(
        "current-context: c\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "users: [{name: u, user: {}}]\n"
    )

    with (
        pytest.raises(SetupError, match=r"nodes cannot be simulated.* 127.0.0.1:1"),
        simulated(config, SimulatedNode(name="nowhere")),
    ):
        pass


def test_an_image_that_was_built_here_runs_without_root_and_with_a_read_only_root(
    cluster: Cluster, namespace: str, report: Report, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(
        "ARG BASE=python:3.11-slim-bookworm\n"
        "FROM ${BASE} AS building\n"
        "ARG WORD\n"
        'RUN python -c "import sys; print(sys.version_info[:2])" && echo ${WORD} > /word\n'
        "FROM ${BASE}\n"
        "COPY --from=building /word /word\n"
        "USER 65532:65532\n"
        'CMD ["sleep", "infinity"]\n'
    )
    tag = images.build(
        tmp_path / "Dockerfile",
        tmp_path,
        f"omnistage.local/{namespace}:1",
        arguments={"WORD": namespace},
        stand_ins=("python:3.11-slim-bookworm",),
        report=report,
    )
    cluster.load_image(tag)
    here = f"--namespace={namespace}"
    enforce = "pod-security.kubernetes.io/enforce=restricted"
    cluster.call("label", "namespace", namespace, enforce)
    cluster.apply(pod("built", tag, ASLEEP), namespace=namespace)
    cluster.wait("condition=Ready", "pod/built", here)

    said = cluster.call(
        "exec", "built", here, "--", "sh", "-c", "id -u; cat /word; touch /x 2>&1 || true"
    )

    assert said.splitlines()[:2] == ["65532", namespace]
    assert "Read-only file system" in said


@pytest.mark.usefixtures("cluster")
def test_a_build_that_fails_says_what_failed(report: Report, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {images.BASE}\nRUN echo out of luck >&2 && false\n")

    with pytest.raises(SetupError, match="out of luck"):
        images.build(tmp_path / "Dockerfile", tmp_path, "omnistage.local/never:1", report=report)


def test_a_cluster_of_ones_own_is_used_by_its_kubeconfig_and_gets_images_as_its_owner_says(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    """Somebody's own cluster is this one here, known by nothing but a copy of its kubeconfig."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_bytes(cluster.kubeconfig.read_bytes())
    archive = tmp_path / "given.tar"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))

    with at_hand(tmp_path / "no-laboratory", report) as somebodys:
        assert not somebodys.is_laboratory
        assert somebodys.get("namespace", "default")["status"]["phase"] == "Active"
        monkeypatch.delenv(LOAD_IMAGE, raising=False)
        with pytest.raises(SetupError, match="kind load image-archive"):
            somebodys.load_image(images.BASE)
        monkeypatch.setenv(LOAD_IMAGE, f"cp {{archive}} '{archive}'")
        somebodys.load_image(images.BASE)

    assert archive.stat().st_size == images.base_archive(report).stat().st_size
    assert not (tmp_path / "no-laboratory").exists()
    assert cluster.get("namespace", "default")["status"]["phase"] == "Active", "it still runs"


def test_custom_resources_scale_and_server_side_apply_knows_owners(
    cluster: Cluster, namespace: str
) -> None:
    here, group = f"--namespace={namespace}", f"{namespace}.omnistage.test"
    count = {"type": "integer"}
    part = {"type": "object", "properties": {"replicas": count, "note": {"type": "string"}}}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {"type": "object", "properties": {"spec": part, "status": part}}
        },
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
            },
        },
    }
    names = {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    thing = {
        "apiVersion": f"{group}/v1",
        "kind": "Thing",
        "metadata": {"name": "one"},
        "spec": {"replicas": 1, "note": "mine"},
    }
    cluster.apply(definition)
    try:
        cluster.wait("condition=Established", f"crd/things.{group}")
        cluster.apply(thing, namespace=namespace)

        cluster.call("scale", f"thing.{group}/one", "--replicas=3", here)

        assert cluster.get(f"thing.{group}", "one", here)["spec"] == {"replicas": 3, "note": "mine"}
        with pytest.raises(SetupError, match="conflict"):
            cluster.apply(thing, namespace=namespace)
    finally:
        cluster.call("delete", "crd", f"things.{group}")
