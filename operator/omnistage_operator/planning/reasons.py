"""Why a stage is as it is: one word and one sentence, the most telling of all its pods.

"It is not ready" helps nobody. Each pod that does not serve says why (`pod_states`); what only a change
by a person can mend goes before what heals by itself, and what is broken before what takes its time.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from omnistage_common.errors import truncated
from omnistage_common.pipeline.resources.status import StageReason
from omnistage_operator.planning.decisions import Json
from omnistage_operator.planning.labels import is_follower
from omnistage_operator.planning.pod_states import (
    Finding,
    is_leaving,
    is_lost,
    is_ready,
    pod_finding,
)

__all__ = ["MAX_REASON_MESSAGE", "NEEDS_A_CHANGE", "explain"]

MAX_REASON_MESSAGE: Final = 1024
"""Characters."""

_TELLING: Final = (
    StageReason.ENGINE_ARGS_REJECTED,
    StageReason.WEIGHTS_INVALID,
    StageReason.MISSING_DEPENDENCY,
    StageReason.OOM_KILLED,
    StageReason.CRASH_LOOP,
    StageReason.IMAGE_PULL,
    StageReason.CONFIG_ERROR,
    StageReason.PODS_REFUSED,
    StageReason.QUOTA_EXCEEDED,
    StageReason.VOLUME_NOT_MOUNTED,
    StageReason.INSUFFICIENT_CAPACITY,
    StageReason.EVICTED,
    StageReason.MODEL_LOADING,
    StageReason.PROGRESSING,
)
"""The first of these that a pod gives is the stage's."""

NEEDS_A_CHANGE: Final = frozenset(_TELLING[: _TELLING.index(StageReason.QUOTA_EXCEEDED)]) | {
    StageReason.GRAPH_INVALID,
    StageReason.LEADER_WORKER_SET_MISSING,
    StageReason.RUNTIME_MISSING,
}
"""Reasons that go only when somebody changes something."""


def explain(
    *, desired: int, workload: Json | None, pods: Sequence[Json], events: Iterable[Json] = ()
) -> Finding:
    """Why one revision of a stage is as it is.

    Args:
        desired: Replicas that should be there.
        workload: What runs them; None when it is not there yet.
        pods: All of this revision; where a replica spans nodes, only its leader counts as one.
        events: About pods, of `events.k8s.io`, in any order; others may be among them.
    """
    if desired == 0:
        return _none_wanted(pods)
    ready = sum(is_ready(pod) and not is_follower(pod) for pod in pods)
    if ready >= desired:
        return Finding(reason=StageReason.READY, message="")
    findings = [*_refused(workload), *_of_pods(pods, events)]
    if not findings:
        missing = "its workload" if workload is None else "its pods"
        findings = [(Finding(reason=StageReason.PROGRESSING, message="being made"), missing)]
    return _told(findings, ready, desired)


def _none_wanted(pods: Sequence[Json]) -> Finding:
    left = [pod for pod in pods if not is_lost(pod) and not is_follower(pod)]
    if left:
        message = f"{_replicas(len(left))} finish their requests"
        return Finding(reason=StageReason.DRAINING, message=message)
    return Finding(reason=StageReason.SCALED_TO_ZERO, message="no replica is wanted")


def _refused(workload: Json | None) -> list[tuple[Finding, str]]:
    """Why pods are not even made: a quota, or a policy of the cluster."""
    conditions: Sequence[Json] = (workload or {}).get("status", {}).get("conditions", ())
    return [
        (
            Finding(
                reason=StageReason.QUOTA_EXCEEDED
                if "exceeded quota" in each.get("message", "")
                else StageReason.PODS_REFUSED,
                message=truncated(each.get("message", "")),
            ),
            "its pods",
        )
        for each in conditions
        if each.get("type") == "ReplicaFailure" and each.get("status") == "True"
    ]


def _of_pods(pods: Sequence[Json], events: Iterable[Json]) -> list[tuple[Finding, str]]:
    by_pod: dict[str, list[Json]] = {}
    for event in sorted(events, key=_when):
        by_pod.setdefault(event.get("regarding", {}).get("uid", ""), []).append(event)
    return [
        (pod_finding(pod, by_pod.get(pod["metadata"]["uid"], [])), pod["metadata"]["name"])
        for pod in sorted(pods, key=lambda each: str(each["metadata"]["name"]))
        if not is_ready(pod) and not is_leaving(pod)
    ]


def _told(findings: Sequence[tuple[Finding, str]], ready: int, desired: int) -> Finding:
    """The most telling finding, with those who give it and how many replicas there are."""
    first, who = min(findings, key=lambda each: _TELLING.index(each[0].reason))
    same = Counter(finding for finding, _ in findings)[first]
    others = f" (and {same - 1} more)" if same > 1 else ""
    text = f"{ready} of {_replicas(desired)} ready; {who}{others}: {first.message}"
    if len(text) > MAX_REASON_MESSAGE:
        text = f"{text[: MAX_REASON_MESSAGE - 1]}…"
    return Finding(reason=first.reason, message=text)


def _replicas(count: int) -> str:
    return f"{count} replica" if count == 1 else f"{count} replicas"


def _when(event: Json) -> str:
    """When it was seen last; the API writes all of them in one form of fixed width to the second."""
    series: dict[str, Any] = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("deprecatedLastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp", "")
    )
