"""The kinds that the operator reads and writes, spelled out.

Versions are fixed here, so no request is spent on asking the server what it has, and RBAC can be
checked against this list.
"""

from typing import Final

import msgspec

from omnistage_common.cluster.manifests import Manifest
from omnistage_common.errors import SetupError

__all__ = [
    "CONFIG_MAPS",
    "DEPLOYMENTS",
    "ENDPOINT_SLICES",
    "EVENTS",
    "HORIZONTAL_POD_AUTOSCALERS",
    "INFERENCE_PIPELINES",
    "KINDS",
    "LEADER_WORKER_SETS",
    "LEASES",
    "NETWORK_POLICIES",
    "NODES",
    "PIPELINE_TEMPLATES",
    "PODS",
    "POD_DISRUPTION_BUDGETS",
    "SERVICES",
    "SERVICE_ACCOUNTS",
    "STAGES",
    "STAGE_RUNTIMES",
    "ResourceKind",
    "kind_of",
]


class ResourceKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of object at one version."""

    group: str
    """API group; empty for the core."""
    version: str
    plural: str
    """Name in paths and in RBAC."""
    kind: str
    """Name in manifests."""
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """What a manifest of this kind has as `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _kind(api_version: str, plural: str, kind: str, *, namespaced: bool = True) -> ResourceKind:
    group, _, version = api_version.rpartition("/")
    return ResourceKind(
        group=group, version=version, plural=plural, kind=kind, namespaced=namespaced
    )


_OURS: Final = "omnistage.io/v1alpha1"

INFERENCE_PIPELINES: Final = _kind(_OURS, "inferencepipelines", "InferencePipeline")
STAGES: Final = _kind(_OURS, "stages", "Stage")
PIPELINE_TEMPLATES: Final = _kind(_OURS, "pipelinetemplates", "PipelineTemplate", namespaced=False)
STAGE_RUNTIMES: Final = _kind(_OURS, "stageruntimes", "StageRuntime", namespaced=False)

CONFIG_MAPS: Final = _kind("v1", "configmaps", "ConfigMap")
NODES: Final = _kind("v1", "nodes", "Node", namespaced=False)
PODS: Final = _kind("v1", "pods", "Pod")
SERVICES: Final = _kind("v1", "services", "Service")
SERVICE_ACCOUNTS: Final = _kind("v1", "serviceaccounts", "ServiceAccount")
DEPLOYMENTS: Final = _kind("apps/v1", "deployments", "Deployment")
ENDPOINT_SLICES: Final = _kind("discovery.k8s.io/v1", "endpointslices", "EndpointSlice")
EVENTS: Final = _kind("events.k8s.io/v1", "events", "Event")
HORIZONTAL_POD_AUTOSCALERS: Final = _kind(
    "autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"
)
LEADER_WORKER_SETS: Final = _kind(
    "leaderworkerset.x-k8s.io/v1", "leaderworkersets", "LeaderWorkerSet"
)
LEASES: Final = _kind("coordination.k8s.io/v1", "leases", "Lease")
NETWORK_POLICIES: Final = _kind("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy")
POD_DISRUPTION_BUDGETS: Final = _kind("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget")

KINDS: Final = (
    INFERENCE_PIPELINES,
    STAGES,
    PIPELINE_TEMPLATES,
    STAGE_RUNTIMES,
    CONFIG_MAPS,
    NODES,
    PODS,
    SERVICES,
    SERVICE_ACCOUNTS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    EVENTS,
    HORIZONTAL_POD_AUTOSCALERS,
    LEADER_WORKER_SETS,
    LEASES,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
)
"""Every kind that the operator knows."""

_BY_NAME: Final = {(kind.api_version, kind.kind): kind for kind in KINDS}


def kind_of(manifest: Manifest) -> ResourceKind:
    """The kind that a manifest says it is of.

    Raises:
        SetupError: The operator does not know the kind; `KINDS` must name it.
    """
    named = (manifest.get("apiVersion", ""), manifest.get("kind", ""))
    if named not in _BY_NAME:
        raise SetupError(f"kind {named[1]!r} of {named[0]!r} is not in the operator's KINDS")
    return _BY_NAME[named]
