"""Simulated nodes: they are there, have accelerators, and run every pod at once, in word only.

For tests of placement and for measurements of scale: the scheduler and all controllers are real, the
node is an object whose heartbeat and pod statuses this module writes. A container on such a node never
runs; whoever uses one says so. It knows pods and nodes, and nothing of pipelines.
"""

import asyncio
import datetime as dt
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from ipaddress import IPv4Network
from typing import Any, Final

from msgspec import Struct
from prometheus_client import CollectorRegistry

from omnistage_common.cluster.api import Api, Limits
from omnistage_common.cluster.connecting import Transport
from omnistage_common.cluster.errors import ObjectNotFound, WriteConflict
from omnistage_common.cluster.fencing import Fence
from omnistage_common.cluster.informing import Informer, WatchOptions
from omnistage_common.cluster.kinds import LEASES, NODES, PODS
from omnistage_common.cluster.manifests import (
    Manifest,
    ObjectKey,
    Uid,
    is_deleted,
    key_of,
    uid_of,
)
from omnistage_common.cluster.messages import Selection
from omnistage_common.cluster.metrics import ClusterMetrics

__all__ = ["SIMULATED_LABEL", "SimulatedNode", "simulated_nodes"]

SIMULATED_LABEL: Final = "omnistage.io/simulated-node"
"""Label with value `true` on every simulated node."""

_MANAGER: Final = "omnistage-simulated-nodes"
_WORKERS: Final = 16
"""Requests about pods at a time."""
_LIMITS: Final = Limits(per_second=2000.0, burst=4000, tries=8)
"""A kubelet's patience: a busy server is asked again."""
_ANSWER_SECONDS: Final = 15.0
_HEARTBEAT_SECONDS: Final = 10.0
_LEASE_SECONDS: Final = 40
_LEASES_IN: Final = "kube-node-lease"
_BOUND: Final = "spec.nodeName!="
_ADDRESSES: Final = IPv4Network("198.18.0.0/15")
"""Set aside for benchmarks: no pod or machine has one of these."""


class SimulatedNode(Struct, frozen=True, kw_only=True):
    """A node to simulate."""

    name: str
    labels: Mapping[str, str] = {}
    taints: tuple[Mapping[str, str], ...] = ()
    """As in a node's spec: `{"key": ..., "value": ..., "effect": "NoSchedule"}`."""
    resources: Mapping[str, int | str] = {}
    """Beside the defaults, or in their place: `{"nvidia.com/gpu": 8}`."""


@asynccontextmanager
async def simulated_nodes(transport: Transport, *nodes: SimulatedNode) -> AsyncIterator[None]:
    """Nodes that are there while the context lasts; their pods end with them.

    Args:
        transport: The way to the API server, with the rights of an administrator.
        nodes: What to simulate.

    Raises:
        ApiError: The API server is not reached, or refused one of them; within the context, in a group, what ended the
            simulation.
    """
    metrics = ClusterMetrics(CollectorRegistry())
    api = Api(
        transport,
        field_manager=_MANAGER,
        fence=Fence.always_open(),
        metrics=metrics.api(),
        limits=_LIMITS,
    )
    pods = Informer(
        api=api,
        kind=PODS,
        options=WatchOptions(fields=_BOUND, shrink=_essence),
        metrics=metrics.cache(str(PODS)),
    )
    # A server that is not there is told at once; one that is busy later is waited for.
    await api.unfenced(Limits.once(_ANSWER_SECONDS)).check()
    fleet = _Fleet(api, pods, nodes)
    try:
        await fleet.create()
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(fleet.work(), name="simulated nodes")
            try:
                yield
            finally:
                working.cancel()
    finally:
        await fleet.remove()


class _Fleet:
    """Some simulated nodes of one cluster."""

    def __init__(self, api: Api, pods: Informer, nodes: tuple[SimulatedNode, ...]) -> None:
        self._api = api
        self._pods = pods
        self._nodes = {node.name: node for node in nodes}
        self._made: dict[str, Uid] = {}
        self._due: asyncio.Queue[ObjectKey] = asyncio.Queue()
        self._started: set[Uid] = set()
        """Pods that were told to run: a state that was older must not give them a new address."""
        self._addresses = itertools.cycle(_ADDRESSES.hosts())
        pods.on_change(self._changed)

    async def create(self) -> None:
        """Makes the nodes, ready from the beginning."""
        for node in self._nodes.values():
            made = await self._api.apply(_node_object(node), NODES)
            self._made[node.name] = uid_of(made)
            await self._beat(node.name)
            await self._api.apply_status(_node_status(node), NODES)

    async def remove(self) -> None:
        """Removes the nodes, then whatever pods are on them."""
        for name, uid in self._made.items():
            await self._api.delete(NODES, ObjectKey("", name), uid=uid)
        for name in self._made:
            left = await self._api.list_all(PODS, Selection(fields=f"spec.nodeName={name}"))
            async with asyncio.TaskGroup() as tasks:
                for pod in left:
                    tasks.create_task(self._end(pod))

    async def work(self) -> None:
        """Keeps the nodes alive and runs their pods, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_alive())
            tasks.create_task(self._pods.run())
            for _ in range(_WORKERS):
                tasks.create_task(self._serve_pods())

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            for name in self._nodes:
                await self._beat(name)

    async def _beat(self, name: str) -> None:
        await self._api.apply(_lease(name, self._made[name]), LEASES)

    def _changed(self, before: Manifest | None, after: Manifest | None) -> None:
        if before is not None and (after is None or uid_of(before) != uid_of(after)):
            self._started.discard(uid_of(before))
        if after is not None and self._is_due(after):
            self._due.put_nowait(key_of(after))

    def _is_due(self, pod: Manifest) -> bool:
        if pod["spec"]["nodeName"] not in self._nodes:
            return False
        pending = pod["status"]["phase"] == "Pending" and uid_of(pod) not in self._started
        return pending or is_deleted(pod)

    async def _serve_pods(self) -> None:
        while True:
            pod = self._pods.store.get(await self._due.get())
            if pod is None or not self._is_due(pod):
                continue
            if is_deleted(pod):
                await self._end(pod)
            else:
                self._started.add(uid_of(pod))
                with _gone_is_fine():
                    await self._api.apply_status(_running(pod, str(next(self._addresses))), PODS)

    async def _end(self, pod: Manifest) -> None:
        """Says that the containers are gone."""
        with _gone_is_fine():
            await self._api.delete(PODS, key_of(pod), uid=uid_of(pod), grace_s=0)


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    """A pod may have gone before, and another may have come in its place."""
    try:
        yield
    except (ObjectNotFound, WriteConflict):
        return


def _essence(pod: Manifest) -> Manifest:
    """A pod as far as a kubelet that runs nothing needs to know it."""
    metadata, spec = pod["metadata"], pod.get("spec", {})
    kept = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
    return {
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "spec": {
            "nodeName": spec.get("nodeName", ""),
            "containers": [_container_essence(each) for each in spec.get("containers", [])],
            "initContainers": [_container_essence(each) for each in spec.get("initContainers", [])],
        },
        "status": {"phase": pod.get("status", {}).get("phase", "Pending")},
    }


def _container_essence(container: Manifest) -> Manifest:
    kept = ("name", "image", "restartPolicy")
    return {name: container[name] for name in kept if name in container}


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _node_object(node: SimulatedNode) -> Manifest:
    labels = {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        SIMULATED_LABEL: "true",
        **node.labels,
    }
    return {
        "apiVersion": NODES.api_version,
        "kind": NODES.kind,
        "metadata": {"name": node.name, "labels": labels},
        "spec": {"taints": [dict(taint) for taint in node.taints]} if node.taints else {},
    }


def _lease(name: str, node: Uid) -> Manifest:
    """The node's heartbeat; it goes when the node goes."""
    owner = {"apiVersion": NODES.api_version, "kind": NODES.kind, "name": name, "uid": node}
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": {"name": name, "namespace": _LEASES_IN, "ownerReferences": [owner]},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": _LEASE_SECONDS,
            "renewTime": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


def _node_status(node: SimulatedNode) -> Manifest:
    resources = {
        "cpu": "64",
        "memory": "512Gi",
        "ephemeral-storage": "1Ti",
        "pods": "5000",
        **{name: str(amount) for name, amount in node.resources.items()},
    }
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Simulated",
        "message": "this node is simulated",
        "lastHeartbeatTime": _now(),
        "lastTransitionTime": _now(),
    }
    return {
        "apiVersion": NODES.api_version,
        "kind": NODES.kind,
        "metadata": {"name": node.name},
        "status": {"capacity": resources, "allocatable": resources, "conditions": [condition]},
    }


def _running(pod: Manifest, address: str) -> Manifest:
    """The status of a pod whose containers all serve."""
    now, spec, key = _now(), pod["spec"], key_of(pod)
    kinds = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds]
    return {
        "apiVersion": PODS.api_version,
        "kind": PODS.kind,
        "metadata": {"name": key.name, "namespace": key.namespace, "uid": uid_of(pod)},
        "status": {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": now,
            "conditions": conditions,
            "containerStatuses": [
                _container(each, {"running": {"startedAt": now}}) for each in spec["containers"]
            ],
            "initContainerStatuses": [
                _init_container(each, now) for each in spec["initContainers"]
            ],
        },
    }


def _init_container(container: Manifest, now: str) -> Manifest:
    if container.get("restartPolicy") == "Always":
        return _container(container, {"running": {"startedAt": now}})
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
    return _container(container, {"terminated": ended})


def _container(container: Manifest, state: dict[str, Any]) -> Manifest:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": f"simulated://{container['image']}",
        "containerID": f"simulated://{container['name']}",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": state,
    }
