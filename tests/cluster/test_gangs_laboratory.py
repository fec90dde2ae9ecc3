"""`LeaderWorkerSet`, on which the operator's gangs stand, does what they take for granted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cluster.gangs import DEFINITION, GROUP, WEBHOOK_OBJECTS, leader_worker_sets
from cluster.laboratory import images
from cluster.laboratory.access import Cluster

SECONDS: Final = 90
LABEL: Final = "leaderworkerset.sigs.k8s.io"
OWNED: Final = "pods,statefulsets,services,controllerrevisions,endpointslices"
PODS: Final = {"gang-0", "gang-0-1", "gang-1", "gang-1-1"}
ASK_LEADER: Final = (
    "import os, socket\n"
    "names = 'LWS_GROUP_SIZE', 'LWS_WORKER_INDEX', 'LWS_LEADER_ADDRESS'\n"
    "values = [os.environ[name] for name in names]\n"
    "print(*values, socket.gethostbyname(values[-1]))"
)


@pytest.fixture
def knowing(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, which knows the kind, and the base image."""
    cluster.load_image(images.BASE)
    with leader_worker_sets(cluster):
        yield cluster


def gangs(replicas: int) -> dict[str, Any]:
    """Gangs of two pods that sleep, and end a second after they are told to.

    One that ended at once could be made anew before the controller has seen it go, and its gang stayed.
    """
    container = {
        "name": "main",
        "image": images.BASE,
        "command": ["sleep", "infinity"],
        "imagePullPolicy": "Never",
    }
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "gang"},
        "spec": {
            "replicas": replicas,
            "leaderWorkerTemplate": {
                "size": 2,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": template,
                "workerTemplate": template,
            },
        },
    }


def pods(cluster: Cluster, namespace: str) -> dict[str, dict[str, Any]]:
    """Name -> pod."""
    items = cluster.get("pods", f"--namespace={namespace}")["items"]
    return {pod["metadata"]["name"]: pod for pod in items}


def uid(pod: dict[str, Any]) -> str:
    """Tells a pod from a later one of its name."""
    return str(pod["metadata"]["uid"])


def wait_ready(cluster: Cluster, namespace: str, groups: int) -> None:
    """Waits until so many gangs are complete."""
    where = f"--namespace={namespace}"
    gang = f"{DEFINITION}/gang"
    cluster.wait(f"jsonpath={{.status.readyReplicas}}={groups}", gang, where)
    cluster.wait("condition=Available", gang, where)


def controllers(cluster: Cluster) -> list[int]:
    """Processes of the controller, anywhere on this machine, that belong to the laboratory."""
    assert cluster.instance is not None
    mine = f"--kubeconfig={cluster.kubeconfig}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if mine in words and words[0].endswith(b"leader-worker-sets"):
            found.append(int(path.parent.name))
    return found


@pytest.mark.timeout(SECONDS, func_only=True)
def test_a_gang_knows_its_leader_and_goes_as_a_whole_when_a_follower_does(
    knowing: Cluster, namespace: str
) -> None:
    where = f"--namespace={namespace}"
    knowing.apply(gangs(2), namespace=namespace)
    wait_ready(knowing, namespace, 2)
    before = pods(knowing, namespace)
    assert set(before) == PODS

    for group in ("0", "1"):
        leader = before[f"gang-{group}"]
        for name, index in ((f"gang-{group}", "0"), (f"gang-{group}-1", "1")):
            labels = before[name]["metadata"]["labels"]
            assert labels[f"{LABEL}/group-index"] == group
            assert labels[f"{LABEL}/worker-index"] == index
            said = knowing.call("exec", name, where, "--", "python3", "-c", ASK_LEADER).split()
            address = f"gang-{group}.gang.{namespace}"
            assert said == ["2", index, address, leader["status"]["podIP"]]

    knowing.call("label", "pod", "gang-1", "gang-1-1", "age=old", where)
    knowing.call("delete", "pod", "gang-1-1", where)
    knowing.wait("delete", "pods", "--selector=age=old", where)
    for name in ("gang-1", "gang-1-1"):
        knowing.wait("create", f"pod/{name}", where)
        knowing.wait("condition=Ready", f"pod/{name}", where)

    after = pods(knowing, namespace)
    assert set(after) == PODS
    changed = {name for name in PODS if uid(after[name]) != uid(before[name])}
    assert changed == {"gang-1", "gang-1-1"}


@pytest.mark.timeout(SECONDS, func_only=True)
def test_the_last_gang_goes_first_and_after_the_block_nothing_is_left(
    cluster: Cluster, namespace: str
) -> None:
    if not cluster.is_laboratory or DEFINITION in cluster.call("get", "crd", "--output=name"):
        pytest.skip("the cluster has LeaderWorkerSet, or not, by its owner's will")
    where = f"--namespace={namespace}"
    cluster.load_image(images.BASE)
    with leader_worker_sets(cluster):
        cluster.apply(gangs(2), namespace=namespace)
        wait_ready(cluster, namespace, 2)
        before, applied = pods(cluster, namespace), cluster.get(DEFINITION, "gang", where)

        cluster.apply(gangs(2), namespace=namespace)
        again = cluster.get(DEFINITION, "gang", where)
        assert again["metadata"]["resourceVersion"] == applied["metadata"]["resourceVersion"]

        cluster.apply(gangs(1), namespace=namespace)
        cluster.wait("delete", "pod/gang-1", "pod/gang-1-1", where)
        kept = {name: uid(pod) for name, pod in pods(cluster, namespace).items()}
        assert kept == {name: uid(before[name]) for name in ("gang-0", "gang-0-1")}
        assert controllers(cluster)

    cluster.wait("delete", OWNED, f"--selector={LABEL}/name=gang", where)
    assert pods(cluster, namespace) == {}
    assert controllers(cluster) == []
    named = ("get", f"crd/{DEFINITION}", *WEBHOOK_OBJECTS, "--ignore-not-found", "--output=name")
    assert cluster.call(*named) == ""
