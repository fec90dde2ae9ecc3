"""An API server in memory, as a gateway sees one, and the objects that an operator would make.

It keeps manifests, tells a listener what there is and what changes, applies entries of gateways the
way server-side apply does (each field manager has its own), and can be away.
"""

import asyncio
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import msgspec

from omnistage_common.errors import UnavailableError
from omnistage_common.pipeline.plan import PipelinePlan, encode_plan
from omnistage_gateway.discovery.cluster_door import ClusterListener, Manifest, Watched

__all__ = ["FakeCluster", "FakeDoor", "pipeline_manifest", "plan_manifest", "slice_manifest"]


def pipeline_manifest(
    name: str,
    current: str | None = None,
    *,
    namespace: str = "default",
    uid: str = "",
    turn: int = 0,
    draining: tuple[str, ...] = (),
    created: str = "2026-11-30T10:00:00Z",
) -> dict[str, Any]:
    """An InferencePipeline."""
    status: dict[str, Any] = {"turn": turn}
    if current is not None:
        status["currentRevision"] = current
        status["revisions"] = [{"revision": current, "phase": "Serving"}]
        status["revisions"] += [{"revision": each, "phase": "Draining"} for each in draining]
    return {
        "apiVersion": "omnistage.io/v1alpha1",
        "kind": "InferencePipeline",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-of-{namespace}-{name}",
            "creationTimestamp": created,
        },
        "spec": {"template": {"name": "any"}},
        "status": status,
    }


def plan_manifest(
    plan: PipelinePlan, services: Mapping[str, str], *, uid: str = ""
) -> dict[str, Any]:
    """The ConfigMap of a plan.

    Args:
        plan: What it holds.
        services: Stage of the plan -> name of its Service; the `Stage` is what precedes the last dash.
        uid: Of the ConfigMap; one of its own by name unless given.
    """
    name = f"{plan.name}-plan-{plan.revision}"
    where = {
        stage: {"stage": service.rsplit("-", 1)[0], "revision": "r", "service": service}
        for stage, service in services.items()
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "immutable": True,
        "metadata": {
            "name": name,
            "namespace": plan.namespace,
            "uid": uid or f"uid-of-{plan.namespace}-{name}",
            "labels": {"omnistage.io/pipeline": plan.name, "omnistage.io/plan": plan.revision},
        },
        "data": {
            "plan.json": encode_plan(plan).decode(),
            "services.json": msgspec.json.encode(where).decode(),
        },
    }


def slice_manifest(
    service: str,
    *replicas: tuple[str, int],
    namespace: str = "default",
    port: int = 7001,
    part: str = "a",
    conditions: Mapping[str, bool] | None = None,
) -> dict[str, Any]:
    """An EndpointSlice.

    Args:
        service: Name of the Service.
        replicas: Pod and port of each. All of a slice have one port, so that of the first counts.
        namespace: Of all.
        port: For a slice without replicas.
        part: Which of the service's slices.
        conditions: Of every endpoint; ready unless something else is said.
    """
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{service}-{part}",
            "namespace": namespace,
            "labels": {
                "kubernetes.io/service-name": service,
                "omnistage.io/stage": service.rsplit("-", 1)[0],
            },
        },
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": ["127.0.0.1"],
                "conditions": dict(conditions or {})
                or {"ready": True, "serving": True, "terminating": False},
                "targetRef": {"kind": "Pod", "name": pod, "uid": f"uid-of-{pod}"},
            }
            for pod, _ in replicas
        ],
        "ports": [{"name": "grpc", "port": replicas[0][1] if replicas else port}],
    }


class FakeCluster:
    """See the module."""

    def __init__(self) -> None:
        self.applied: list[tuple[str, dict[str, Any]]] = []
        """Manager and manifest of every status that was written."""
        self.attempts = 0
        """Writes that were tried."""
        self.away = False
        """While it is, writes fail and nothing is told."""
        self._objects: dict[tuple[Watched, str, str], dict[str, Any]] = {}
        self._missed: dict[tuple[Watched, str, str], dict[str, Any] | None] = {}
        self._listener: ClusterListener | None = None

    async def check(self) -> None:
        """Fails while it is away."""
        if self.away:
            raise UnavailableError("the API server is away, as the test says")

    async def watch(self, listener: ClusterListener) -> None:
        """Tells all that there is, then what changes."""
        self._listener = listener
        for (kind, _, _), manifest in list(self._objects.items()):
            listener.changed(kind, deepcopy(manifest))
        listener.synced()
        try:
            await asyncio.Event().wait()
        finally:
            self._listener = None

    def door(self, gateway: str) -> "FakeDoor":
        """What a gateway gets of it."""
        return FakeDoor(self, f"omnistage-gateway/{gateway}")

    async def apply(self, manifest: Manifest, manager: str) -> bool:
        """Takes the entries of a manager."""
        self.attempts += 1
        await asyncio.sleep(0)
        if self.away:
            raise UnavailableError("the API server is away, as the test says")
        self.applied.append((manager, deepcopy(dict(manifest))))
        identity = manifest["metadata"]
        key = (Watched.PIPELINES, identity["namespace"], identity["name"])
        there = self._objects.get(key)
        if there is None or there["metadata"]["uid"] != identity["uid"]:
            return False
        name = manager.removeprefix("omnistage-gateway/")
        others = [each for each in there["status"].get("gateways", []) if each["name"] != name]
        entries = others + manifest["status"].get("gateways", [])
        self.put(there | {"status": there["status"] | {"gateways": entries}})
        return True

    def put(self, *manifests: dict[str, Any]) -> None:
        """Objects are there, in this state. A pipeline keeps what gateways said of it."""
        for manifest in manifests:
            kind, key = _key(manifest)
            there = self._objects.get(key, {})
            entries = there.get("status", {}).get("gateways")
            same = there.get("metadata", {}).get("uid") == manifest["metadata"].get("uid")
            if entries is not None and same and "gateways" not in manifest.get("status", {}):
                manifest = manifest | {"status": manifest["status"] | {"gateways": entries}}  # noqa: PLW2901
            self._objects[key] = manifest
            self._tell(kind, key, manifest)

    def remove(self, *manifests: dict[str, Any]) -> None:
        """Objects are gone."""
        for manifest in manifests:
            kind, key = _key(manifest)
            self._objects.pop(key)
            self._tell(kind, key, None, last=manifest)

    def come_back(self) -> None:
        """Is there again, and tells what was missed."""
        self.away = False
        missed, self._missed = self._missed, {}
        for key, manifest in missed.items():
            last = {"metadata": {"namespace": key[1], "name": key[2]}}
            self._tell(key[0], key, manifest, last=last)

    def entries(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        """What gateways say of a pipeline."""
        key = (Watched.PIPELINES, namespace, name)
        entries: list[dict[str, Any]] = self._objects[key]["status"].get("gateways", [])
        return entries

    def _tell(
        self,
        kind: Watched,
        key: tuple[Watched, str, str],
        manifest: dict[str, Any] | None,
        *,
        last: dict[str, Any] | None = None,
    ) -> None:
        if self.away:
            self._missed[key] = manifest
        elif self._listener is not None and manifest is not None:
            self._listener.changed(kind, deepcopy(manifest))
        elif self._listener is not None and last is not None:
            self._listener.deleted(kind, last)


class FakeDoor:
    """The cluster as one gateway gets at it; a `Cluster`."""

    def __init__(self, cluster: FakeCluster, manager: str) -> None:
        self._cluster = cluster
        self._manager = manager
        self.check = cluster.check
        self.watch = cluster.watch

    async def apply_status(self, manifest: Manifest) -> bool:
        """Takes the entries of this gateway."""
        return await self._cluster.apply(manifest, self._manager)


def _key(manifest: dict[str, Any]) -> tuple[Watched, tuple[Watched, str, str]]:
    kind = Watched(manifest["kind"])
    return kind, (kind, manifest["metadata"]["namespace"], manifest["metadata"]["name"])
