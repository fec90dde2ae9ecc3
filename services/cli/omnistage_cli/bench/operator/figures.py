"""What the figures of an operator process say, and the report that is made of them. Pure."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from omnistage_common.cluster.manifests import Manifest, ObjectKey, key_of, uid_of

__all__ = [
    "Figures",
    "Machine",
    "OperatorReport",
    "Spent",
    "changed_pods",
    "figures_of",
    "is_ready",
    "pod_states",
    "report_of",
]

_REQUESTS: Final = "omnistage_cluster_api_requests_total"
_WRITES: Final = "omnistage_operator_writes_total"
_EVENTS: Final = "omnistage_operator_events_total"
_RECONCILES: Final = "omnistage_operator_reconcile_total"
_SKIPPED: Final = frozenset({"skip", "status_skip"})
_MB: Final = 1e6

PodStates = Mapping[ObjectKey, tuple[str, str]]
"""Pod -> its uid and its version."""


class Figures(Struct, frozen=True, kw_only=True):
    """What one operator process has counted."""

    requests: dict[str, int]
    """`<verb> <resource>` -> requests to the API server, whatever came of them."""
    writes: int
    """Objects and statuses that were written or deleted, and events for people."""
    reconciles: dict[str, int]
    """Controller -> reconciles, whatever came of them."""


class Spent(Struct, frozen=True, kw_only=True):
    """What one operator process has used so far."""

    rss_bytes: int
    cpu_seconds: float


class Machine(Struct, frozen=True, kw_only=True):
    """What else used the processors while the pipelines became ready."""

    cores: int
    busy_seconds: float
    """CPU seconds of everything on this machine, the operator and this benchmark included."""
    bench_seconds: float
    """CPU seconds of this benchmark: simulated nodes, simulated gateway, and following it all."""


class OperatorReport(Struct, frozen=True, kw_only=True):
    """All that was measured."""

    pipelines: int
    seconds_to_ready: float
    """From the first pipeline applied until every one had the condition Ready."""
    rss_mb: float
    """Resident memory of the operator when they had, in MB (10^6 bytes)."""
    cpu_seconds: float
    """CPU time of the operator until then, its start included."""
    idle_writes: int
    """Writes of an operator that was started anew, with nothing to do."""
    restart_pod_changes: int
    """Pods that were replaced or changed by that."""
    requests_per_pipeline: float
    """Requests of the operator to the API server."""
    cpu_ms_per_pipeline: float
    restart_seconds: float
    """From the start of the second process until it had looked at every object."""
    requests: dict[str, int]
    """`<verb> <resource>` -> requests of the operator until all were ready."""
    reconciles: dict[str, int]
    """Controller -> reconciles until all were ready."""
    machine: Machine


def figures_of(text: str) -> Figures:
    """Reads what `/metrics` of an operator says."""
    requests: Counter[str] = Counter()
    reconciles: Counter[str] = Counter()
    writes = 0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels, value = sample.labels, int(sample.value)
            match sample.name:
                case _ if not value:
                    continue
                case name if name == _REQUESTS:
                    requests[f"{labels['verb']} {labels['resource']}"] += value
                case name if name == _RECONCILES:
                    reconciles[labels["controller"]] += value
                case name if name == _WRITES and labels["action"] not in _SKIPPED:
                    writes += value
                case name if name == _EVENTS and labels["outcome"] == "written":
                    writes += value
    return Figures(requests=dict(requests.most_common()), writes=writes, reconciles=reconciles)


def is_ready(pipeline: Manifest) -> bool:
    """Whether a pipeline says that its spec as it is now is served."""
    conditions: list[dict[str, Any]] = pipeline.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def pod_states(pods: Mapping[ObjectKey, Manifest] | list[Manifest]) -> PodStates:
    """Which pods there are, in which state."""
    every = pods.values() if isinstance(pods, Mapping) else pods
    return {key_of(pod): (uid_of(pod), pod["metadata"]["resourceVersion"]) for pod in every}


def changed_pods(before: PodStates, after: PodStates) -> int:
    """Pods that are not as they were: gone, new, replaced or written."""
    return sum(before.get(key) != after.get(key) for key in before.keys() | after.keys())


def report_of(
    *,
    pipelines: int,
    seconds_to_ready: float,
    figures: Figures,
    spent: Spent,
    machine: Machine,
    idle_writes: int,
    restart_pod_changes: int,
    restart_seconds: float,
) -> OperatorReport:
    """The report of what was measured.

    Args:
        pipelines: How many.
        seconds_to_ready: Until all were ready.
        figures: Of the first operator, when they were.
        spent: By it, until then.
        machine: Beside it.
        idle_writes: Of the second operator.
        restart_pod_changes: Pods that changed while it started.
        restart_seconds: Until it had looked at everything.
    """
    return OperatorReport(
        pipelines=pipelines,
        seconds_to_ready=round(seconds_to_ready, 1),
        rss_mb=round(spent.rss_bytes / _MB, 1),
        cpu_seconds=round(spent.cpu_seconds, 2),
        idle_writes=idle_writes,
        restart_pod_changes=restart_pod_changes,
        requests_per_pipeline=round(sum(figures.requests.values()) / pipelines, 1),
        cpu_ms_per_pipeline=round(spent.cpu_seconds * 1000 / pipelines, 1),
        restart_seconds=round(restart_seconds, 1),
        requests=figures.requests,
        reconciles=figures.reconciles,
        machine=machine,
    )
