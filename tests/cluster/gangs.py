"""`LeaderWorkerSet` in a cluster, for tests of stages whose replicas span nodes.

It is an add-on: a definition, webhooks, and a controller that fills in what the API server alone does
not. A cluster of one's own has it or has it not. In the laboratory the controller is a process of the
node, as its other controllers are, and no longer there than the block that asks for it. Definition
and webhooks are those of the release that the controller was built from.
"""

import base64
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

from cluster.laboratory.access import Cluster
from cluster.laboratory.building import program_built
from cluster.laboratory.certificates import AUTHORITY, WEBHOOKS
from cluster.laboratory.commands import program
from cluster.laboratory.instance import Instance
from omnistage_common.errors import SetupError

__all__ = ["DEFINITION", "GROUP", "WEBHOOK_OBJECTS", "leader_worker_sets"]

GROUP: Final = "leaderworkerset.x-k8s.io"
DEFINITION: Final = f"leaderworkersets.{GROUP}"
"""Also the full name of the kind, which no other add-on's short name hides."""

_PROGRAM: Final = "leader-worker-sets"
WEBHOOK_OBJECTS: Final = tuple(
    f"{kind}webhookconfiguration/{_PROGRAM}" for kind in ("mutating", "validating")
)
"""Only ours have these names: where they are and no test runs, a test was killed."""

_PORT: Final = 9443
_START_SECONDS: Final = 30.0
_ASK_EVERY: Final = 0.1
"""Seconds between two looks at a controller that does not serve yet."""
_END_SECONDS: Final = 30.0
_LOG_LINES: Final = 15


@contextmanager
def leader_worker_sets(cluster: Cluster) -> Iterator[None]:
    """The cluster knows `LeaderWorkerSet` until the end of the block.

    A cluster that has it already is used, and left, as it is. The test is skipped on a cluster of
    one's own that has it not.

    Raises:
        SetupError: The laboratory's controller does not start; the message has its last words.
    """
    there = bool(_found(cluster, f"crd/{DEFINITION}"))
    ours = bool(_found(cluster, *WEBHOOK_OBJECTS))
    if there and not ours:
        yield
        return
    if cluster.instance is None:
        pytest.skip("this cluster has no LeaderWorkerSet; install it: https://lws.sigs.k8s.io")
    if ours:
        cluster.call("delete", "--ignore-not-found", *WEBHOOK_OBJECTS, f"crd/{DEFINITION}")
    with ExitStack() as undo:
        _add(cluster, cluster.instance, undo)
        yield


def _add(cluster: Cluster, instance: Instance, undo: ExitStack) -> None:
    controller = program_built(_PROGRAM, cluster.report)
    release = controller.parent / "config"
    # Undone from the last to the first: what the webhooks are asked about goes before they do.
    undo.callback(cluster.call, "delete", "--ignore-not-found", f"crd/{DEFINITION}")
    undo.callback(cluster.call, "delete", "--ignore-not-found", *WEBHOOK_OBJECTS)
    cluster.apply(*_webhooks(cluster, instance, release / "webhook"))
    cluster.call("apply", "--server-side", f"--filename={release / 'crd' / 'bases'}")
    # Before its names are accepted it has no conditions to wait for.
    cluster.wait("jsonpath={.status.acceptedNames.kind}=LeaderWorkerSet", f"crd/{DEFINITION}")
    cluster.wait("condition=Established", f"crd/{DEFINITION}")
    process = undo.enter_context(_running(instance, controller))
    undo.callback(_delete_all, cluster)
    _await_serving(cluster, instance, process)


def _found(cluster: Cluster, *names: str) -> str:
    return cluster.call("get", *names, "--ignore-not-found", "--output=name")


def _delete_all(cluster: Cluster) -> None:
    """Removes every set with all that it owns: who collects garbage must know the kind to do it."""
    every = (DEFINITION, "--all", "--all-namespaces", "--cascade=foreground")
    cluster.call("delete", *every, "--timeout=60s")


def _webhooks(cluster: Cluster, instance: Instance, folder: Path) -> list[dict[str, Any]]:
    """The webhooks of the release, asked at the node's address instead of a Service's."""
    authority = (instance.certificates / f"{AUTHORITY}.crt").read_bytes()
    documents = yaml.safe_load_all(cluster.call("kustomize", str(folder)))
    objects = [each for each in documents if each["kind"].endswith("WebhookConfiguration")]
    for each in objects:
        each["metadata"]["name"] = _PROGRAM
        for webhook in each["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {
                "url": f"https://{instance.ranges.node}:{_PORT}{path}",
                "caBundle": base64.b64encode(authority).decode(),
            }
    return objects


@contextmanager
def _running(instance: Instance, controller: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The controller as a process of the node; it ends with the block, or with this process."""
    assert instance.node is not None
    folder = instance.state / _PROGRAM
    _furnish(instance, folder)
    # Its parent outside the node is killed with us, and it with its parent.
    follow = (program("setpriv"), "--pdeathsig", "KILL")
    enter = (program("nsenter"), "--target", str(instance.node.pid), "--mount", "--net", "--pid")
    own = (controller, f"--config={folder / 'config.json'}", f"--kubeconfig={instance.kubeconfig}")
    try:
        with (
            _log(instance).open("wb") as log,
            subprocess.Popen(
                (*follow, *enter, "--", *follow, *own),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()
                # It writes nothing there, and holds it open until it is gone.
                process.communicate(timeout=_END_SECONDS)
    finally:
        shutil.rmtree(folder)


def _furnish(instance: Instance, folder: Path) -> None:
    """Writes what the controller reads."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    for suffix in ("crt", "key"):
        shutil.copyfile(instance.certificates / f"{WEBHOOKS}.{suffix}", folder / f"tls.{suffix}")
    config = {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "internalCertManagement": {"enable": False},
        "leaderElection": {"leaderElect": False},
        "webhook": {"host": str(instance.ranges.node), "port": _PORT, "certDir": str(folder)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": "0"},
    }
    (folder / "config.json").write_bytes(msgspec.json.encode(config))


def _log(instance: Instance) -> Path:
    return instance.logs / f"{_PROGRAM}.log"


def _await_serving(cluster: Cluster, instance: Instance, process: subprocess.Popen[bytes]) -> None:
    """Waits until the API server asks the webhooks: the one for pods is the last to be there."""
    deadline = time.monotonic() + _START_SECONDS
    while not _is_asked(cluster):
        if process.poll() is not None or time.monotonic() > deadline:
            lines = _log(instance).read_text(encoding="utf-8", errors="replace").splitlines()
            words = "\n".join(lines[-_LOG_LINES:])
            raise SetupError(
                f"The controller of LeaderWorkerSet does not serve:\n{words}\n"
                f"(all of it in {_log(instance)})"
            )
        time.sleep(_ASK_EVERY)


def _is_asked(cluster: Cluster) -> bool:
    """Whether a pod that says it is of a gang would get a gang's variables; none is made."""
    prefix = "leaderworkerset.sigs.k8s.io"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "probe-0",
            "labels": {f"{prefix}/name": "probe", f"{prefix}/worker-index": "0"},
            "annotations": {f"{prefix}/size": "1"},
        },
        "spec": {"containers": [{"name": "probe", "image": "omnistage.local/probe:1"}]},
    }
    text = msgspec.json.encode(pod).decode()
    asked = ("create", "--dry-run=server", "--output=json", "--namespace=default", "--filename=-")
    try:
        answer = msgspec.json.decode(cluster.call(*asked, text=text))
    except SetupError:
        return False
    return "env" in answer["spec"]["containers"][0]
