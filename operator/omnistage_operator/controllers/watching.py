"""What the operator keeps of the cluster: which kinds, which of their objects, found by what.

Once for both controllers, for a kind is watched once. Selectors keep out what is not ours, and what
nobody reads of an object is left out before it is kept: a thousand pipelines have to fit.
"""

from typing import Final

from omnistage_common.cluster.caches import Caches
from omnistage_common.cluster.informing import WatchOptions
from omnistage_common.cluster.kinds import (
    CONFIG_MAPS,
    EVENTS,
    INFERENCE_PIPELINES,
    PIPELINE_TEMPLATES,
    PODS,
    STAGE_RUNTIMES,
    STAGES,
)
from omnistage_common.cluster.manifests import Manifest
from omnistage_operator.controllers.pipelines import (
    GATEWAY_INDEXES,
    PIPELINE_INDEXES,
    STAGE_INDEXES,
)
from omnistage_operator.controllers.stages import (
    EVENT_INDEXES,
    PLAN_INDEXES,
    POD_INDEXES,
    child_kinds,
)
from omnistage_operator.planning.settings import OperatorSettings

__all__ = ["watch_everything"]

_OURS: Final = "app.kubernetes.io/managed-by=omnistage-operator"
_PODS: Final = "app.kubernetes.io/name in (omnistage-stage,omnistage-gateway)"
_WARNINGS: Final = "type=Warning,regarding.kind=Pod"


def watch_everything(caches: Caches, settings: OperatorSettings) -> None:
    """Has the caches keep what the controllers need.

    Args:
        caches: Of the namespaces of pipelines.
        settings: The pods of the gateways' namespace are kept too, and LeaderWorkerSets where the
            cluster knows them.
    """
    caches.watch(INFERENCE_PIPELINES, WatchOptions(indexes=PIPELINE_INDEXES))
    caches.watch(PIPELINE_TEMPLATES)
    caches.watch(STAGE_RUNTIMES)
    caches.watch(STAGES, WatchOptions(indexes=STAGE_INDEXES))
    caches.watch(CONFIG_MAPS, WatchOptions(labels=_OURS, indexes=PLAN_INDEXES))
    caches.watch(
        PODS,
        WatchOptions(
            labels=_PODS,
            indexes={**POD_INDEXES, **GATEWAY_INDEXES},
            shrink=_placed,
            also_in=(settings.gateway_namespace,),
        ),
    )
    caches.watch(EVENTS, WatchOptions(fields=_WARNINGS, indexes=EVENT_INDEXES, shrink=_said))
    for kind in child_kinds(leader_worker_sets=settings.leader_worker_sets):
        if kind is not CONFIG_MAPS:
            caches.watch(kind, WatchOptions(labels=_OURS))


def _placed(pod: Manifest) -> Manifest:
    """A pod as far as it tells where and how it is."""
    return {**pod, "spec": {"nodeName": pod.get("spec", {}).get("nodeName", "")}}


_SAID: Final = frozenset(
    {
        "apiVersion",
        "deprecatedLastTimestamp",
        "eventTime",
        "kind",
        "metadata",
        "note",
        "reason",
        "regarding",
        "series",
        "type",
    }
)


def _said(event: Manifest) -> Manifest:
    """An event as far as it explains something."""
    return {name: value for name, value in event.items() if name in _SAID}
