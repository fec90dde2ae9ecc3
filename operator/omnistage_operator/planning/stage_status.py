"""What to say about a stage: worked out anew from its pods, never counted up.

Everything is told from the pods themselves, not from what their Deployments say of them: a Deployment
that has not been looked at since it was changed still speaks of the time before. Nothing here changes
by itself, so that a stage at rest is never written.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from omnistage_common.ids import Revision
from omnistage_common.pipeline.resources.status import RevisionPhase, StageReason
from omnistage_operator.planning.conditions import Claim, conditions
from omnistage_operator.planning.decisions import Json
from omnistage_operator.planning.labels import every_replica, is_follower
from omnistage_operator.planning.pod_states import Finding, is_leaving, is_lost, is_ready
from omnistage_operator.planning.reasons import NEEDS_A_CHANGE

__all__ = ["RevisionSeen", "StageSeen", "stage_status"]

_MOST_REVISIONS: Final = 16
"""As many as a status holds."""
_SETTLED: Final = frozenset({StageReason.READY, StageReason.SCALED_TO_ZERO})


class RevisionSeen(Struct, frozen=True, kw_only=True):
    """What is there of one revision."""

    revision: Revision
    desired: int
    pods: Sequence[Json]

    @property
    def present(self) -> int:
        """Replicas that are not at their end."""
        return sum(not is_lost(pod) and not is_leaving(pod) for pod in self._replicas())

    @property
    def ready(self) -> int:
        """Replicas that serve and stay."""
        return sum(map(is_ready, self._replicas()))

    def _replicas(self) -> Iterator[Json]:
        """One pod of each."""
        return (pod for pod in self.pods if not is_follower(pod))


class StageSeen(Struct, frozen=True, kw_only=True):
    """What is known of a stage."""

    stage: Json
    revision: Revision | None
    """That the spec describes; None when it describes none."""
    finding: Finding
    """Why that one is as it is, or why there is none."""
    revisions: Sequence[RevisionSeen]
    """All that are there, and the one that the spec describes."""


def stage_status(seen: StageSeen, now: str) -> dict[str, Any]:
    """The status of a stage.

    Args:
        seen: What is known of it.
        now: The time, as a cluster writes it.
    """
    metadata, previous = seen.stage["metadata"], seen.stage.get("status") or {}
    revision = seen.revision or previous.get("revision")
    status: dict[str, Any] = {
        "observedGeneration": metadata["generation"],
        "conditions": conditions(
            _claims(seen),
            previous=previous.get("conditions") or [],
            generation=metadata["generation"],
            now=now,
        ),
        "replicas": sum(each.present for each in seen.revisions),
        "readyReplicas": sum(each.ready for each in seen.revisions),
        "reason": seen.finding.reason.value,
        "message": seen.finding.message,
        "revisions": _revisions(seen, revision),
    }
    if revision is not None:
        status["revision"] = revision
    status["selector"] = every_replica(metadata["name"])
    return status


def _claims(seen: StageSeen) -> list[Claim]:
    reason, message = seen.finding.reason, seen.finding.message
    settled = seen.revision is not None and reason in _SETTLED
    stuck = reason in NEEDS_A_CHANGE
    serving = any(each.ready for each in seen.revisions)
    return [
        Claim(type="Ready", holds=settled, reason=reason.value, message=message),
        Claim(
            type="Available",
            holds=serving,
            reason="ReplicasReady" if serving else reason.value,
            message="" if serving else message,
        ),
        Claim(
            type="Reconciling",
            holds=not settled and not stuck,
            reason=reason.value,
            message="" if settled or stuck else message,
        ),
        Claim(
            type="Stalled",
            holds=stuck,
            reason=reason.value if stuck else "Settled",
            message=message if stuck else "",
        ),
    ]


def _revisions(seen: StageSeen, own: str | None) -> list[Mapping[str, Any]]:
    """All revisions, the one that the spec describes first."""
    ordered = sorted(seen.revisions, key=lambda each: (each.revision != own, each.revision))
    current = next((each for each in ordered if each.revision == own), None)
    taken_over = current is not None and current.ready >= current.desired
    return [
        {
            "revision": each.revision,
            "desired": each.desired,
            "ready": each.ready,
            "updated": each.present,
            "phase": _phase(each, own, taken_over=taken_over).value,
        }
        for each in ordered[:_MOST_REVISIONS]
    ]


def _phase(each: RevisionSeen, own: str | None, *, taken_over: bool) -> RevisionPhase:
    """Where a revision is: an older one serves until the one that the spec describes can."""
    if each.revision == own:
        return RevisionPhase.SERVING if taken_over else RevisionPhase.PREPARING
    going = not each.desired or not each.ready
    return RevisionPhase.DRAINING if taken_over or going else RevisionPhase.SERVING
