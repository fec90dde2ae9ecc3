"""Simulated nodes: they are there, have accelerators, and run every pod at once, in word only.

For tests of placement and of scale: the scheduler and all controllers are real, the node is an
object whose heartbeat and pod statuses this module writes. A container on such a node never runs;
say so in the test. On real nodes, `extended_resource` adds an accelerator that nobody has.
"""

import asyncio
import datetime as dt
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from cluster.laboratory.connection import Answer, Connection, connected
from omnistage_common.errors import SetupError

__all__ = ["SIMULATED_LABEL", "SimulatedNode", "run_simulated", "simulated"]

SIMULATED_LABEL: Final = "omnistage.io/simulated-node"
"""Label with value `true` on every simulated node."""

_WORKERS: Final = 16
"""Requests about pods at a time."""
_WAITING_PODS: Final = 1000
_HEARTBEAT_SECONDS: Final = 10.0
_LEASE_SECONDS: Final = 40
_PAGE: Final = 500
_ADDRESSES: Final = IPv4Network("198.18.0.0/15")
"""Set aside for benchmarks: no pod or machine has one of these."""
_START_SECONDS: Final = 30.0

_NODES: Final = "/api/v1/nodes"
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_BOUND_PODS: Final = "/api/v1/pods?fieldSelector=spec.nodeName!%3D"

Pod = dict[str, Any]


class SimulatedNode(Struct, frozen=True, kw_only=True):
    """A node to simulate."""

    name: str
    labels: Mapping[str, str] = {}
    taints: tuple[Mapping[str, str], ...] = ()
    """As in a node's spec: `{"key": ..., "value": ..., "effect": "NoSchedule"}`."""
    resources: Mapping[str, int | str] = {}
    """Beside the defaults, or in their place: `{"nvidia.com/gpu": 8}`."""


@contextmanager
def simulated(kubeconfig: Path, *nodes: SimulatedNode) -> Iterator[None]:
    """Nodes that are there while the block runs; their pods end with them.

    Raises:
        SetupError: The API server refused one of them.
    """
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    there: Future[None] = Future()
    with ThreadPoolExecutor(1, thread_name_prefix="simulated-nodes") as thread:
        running = thread.submit(
            _run_in_thread, loop, run_simulated(kubeconfig, nodes, there=there, stop=stop)
        )
        # Whatever ends the simulation before the nodes are there is told to who waits for them.
        running.add_done_callback(lambda done: _hand_on(done, there))
        try:
            there.result(_START_SECONDS)
            yield
        finally:
            if not running.done():
                loop.call_soon_threadsafe(stop.set)
            running.result()
            loop.close()


async def run_simulated(
    kubeconfig: Path,
    nodes: tuple[SimulatedNode, ...],
    *,
    there: "Future[None]",
    stop: asyncio.Event,
) -> None:
    """Simulates nodes until told to stop, then removes them and the pods on them.

    Args:
        kubeconfig: The cluster, with the rights of an administrator.
        nodes: What to simulate.
        there: Fulfilled when all of them are ready.
        stop: Ends the simulation.
    """
    async with connected(kubeconfig) as connection:
        fleet = _Fleet(connection, nodes)
        try:
            await fleet.create()
            there.set_result(None)
            async with asyncio.TaskGroup() as tasks:
                working = tasks.create_task(fleet.work())
                await stop.wait()
                working.cancel()
        finally:
            await fleet.remove()


def _run_in_thread(loop: asyncio.AbstractEventLoop, simulation: Any) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(simulation)


def _hand_on(done: "Future[None]", there: "Future[None]") -> None:
    error = done.exception()
    if error is not None and not there.done():
        there.set_exception(error)


class _Fleet:
    """Some simulated nodes of one cluster."""

    def __init__(self, connection: Connection, nodes: tuple[SimulatedNode, ...]) -> None:
        self._connection = connection
        self._version = ""
        """Resource version that the next watch goes on from."""
        self._nodes = {node.name: node for node in nodes}
        self._pods: asyncio.Queue[Pod] = asyncio.Queue(_WAITING_PODS)
        self._started: set[str] = set()
        """Pods that were told to run: an event that was older must not give them a new address."""
        self._addresses = itertools.cycle(_ADDRESSES.hosts())

    async def create(self) -> None:
        """Makes the nodes, ready from the beginning."""
        for node in self._nodes.values():
            _require(await self._connection.ask("POST", _NODES, _node_object(node)))
            await self._beat(node.name)
            status = {"status": _node_status(node)}
            _require(await self._connection.merge(f"{_NODES}/{node.name}/status", status))

    async def remove(self) -> None:
        """Removes the nodes, then whatever pods are on them."""
        for name in self._nodes:
            await self._connection.ask("DELETE", f"{_NODES}/{name}")
        async with asyncio.TaskGroup() as tasks:
            async for pod in self._listed():
                tasks.create_task(self._end(pod))

    async def work(self) -> None:
        """Keeps the nodes alive and runs their pods, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_alive())
            tasks.create_task(self._follow_pods())
            for _ in range(_WORKERS):
                tasks.create_task(self._serve_pods())

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            for name in self._nodes:
                await self._beat(name)

    async def _beat(self, name: str) -> None:
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": _LEASE_SECONDS,
            "renewTime": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        answer = await self._connection.merge(f"{_LEASES}/{name}", {"spec": spec})
        if answer.status == 404:
            lease = {"metadata": {"name": name}, "spec": spec}
            await self._connection.ask("POST", _LEASES, lease)

    async def _listed(self) -> AsyncIterator[Pod]:
        """Every pod on our nodes, in pages; afterwards `_version` is where to watch from."""
        rest = ""
        while True:
            answer = _require(
                await self._connection.ask("GET", f"{_BOUND_PODS}&limit={_PAGE}{rest}")
            )
            for pod in answer.body["items"]:
                if pod["spec"].get("nodeName") in self._nodes:
                    yield pod
            self._version = str(answer.body["metadata"]["resourceVersion"])
            token = answer.body["metadata"].get("continue")
            if not token:
                return
            rest = f"&continue={token}"

    async def _follow_pods(self) -> None:
        """Lists, then watches; lists again whenever the server says that events were lost."""
        while True:
            async for pod in self._listed():
                await self._pods.put(pod)
            while await self._watch_pods():
                pass

    async def _watch_pods(self) -> bool:
        """Follows one watch; returns whether the next may go on from where it ended."""
        options = f"&watch=1&allowWatchBookmarks=true&resourceVersion={self._version}"
        async for event in self._connection.watch(_BOUND_PODS + options):
            if event["type"] == "ERROR":
                return False
            pod = event["object"]
            self._version = pod["metadata"]["resourceVersion"]
            if event["type"] == "DELETED":
                self._started.discard(pod["metadata"]["uid"])
            elif pod.get("spec", {}).get("nodeName") in self._nodes:
                await self._pods.put(pod)
        return True

    async def _serve_pods(self) -> None:
        while True:
            pod = await self._pods.get()
            if pod["metadata"].get("deletionTimestamp"):
                await self._end(pod)
            elif self._is_new(pod):
                self._started.add(pod["metadata"]["uid"])
                address = str(next(self._addresses))
                await self._connection.merge(_path(pod) + "/status", _running(pod, address))

    def _is_new(self, pod: Pod) -> bool:
        pending = pod.get("status", {}).get("phase", "Pending") == "Pending"
        return pending and pod["metadata"]["uid"] not in self._started

    async def _end(self, pod: Pod) -> None:
        """Says that the containers are gone; a pod that is gone already is fine too."""
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        await self._connection.ask("DELETE", _path(pod), options)


def _require(answer: Answer) -> Answer:
    if not answer.good:
        raise SetupError(f"The API server refused a simulated node: {answer.body.get('message')}")
    return answer


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _node_object(node: SimulatedNode) -> dict[str, Any]:
    labels = {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        SIMULATED_LABEL: "true",
        **node.labels,
    }
    return {
        "metadata": {"name": node.name, "labels": labels},
        "spec": {"taints": [dict(taint) for taint in node.taints]},
    }


def _node_status(node: SimulatedNode) -> dict[str, Any]:
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
    return {"capacity": resources, "allocatable": resources, "conditions": [condition]}


def _running(pod: Pod, address: str) -> dict[str, Any]:
    """The status of a pod whose containers all serve."""
    now = _now()
    kinds = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds]
    spec = pod["spec"]
    status = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": now,
        "conditions": conditions,
        "containerStatuses": [
            _container(one, {"running": {"startedAt": now}}) for one in spec["containers"]
        ],
        "initContainerStatuses": [
            _init_container(one, now) for one in spec.get("initContainers", [])
        ],
    }
    return {"status": status}


def _init_container(container: dict[str, Any], now: str) -> dict[str, Any]:
    if container.get("restartPolicy") == "Always":
        return _container(container, {"running": {"startedAt": now}})
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
    return _container(container, {"terminated": ended})


def _container(container: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
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
