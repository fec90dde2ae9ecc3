"""What to say about a pipeline: computed anew from what was observed, never counted up.

`Ready` means that the spec as it is now is served: every stage of the target revision is updated, ready
and routable, and new requests go there. When it is not, the reason is that of the stage that explains
it best, with the scheduler's, kubelet's or engine's own words.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from omnistage_common.ids import ModelName, Revision, StageName
from omnistage_common.pipeline.plan import PipelinePlan
from omnistage_common.pipeline.problems import ResourceProblems
from omnistage_common.pipeline.published import PublishedService
from omnistage_common.pipeline.resources.status import (
    MAX_MESSAGE,
    RevisionPhase,
    StageReason,
    StageStatus,
)
from omnistage_operator.planning.conditions import Claim, conditions
from omnistage_operator.planning.decisions import Json
from omnistage_operator.planning.reasons import NEEDS_A_CHANGE
from omnistage_operator.planning.rollout import RolloutStep

__all__ = ["Seen", "StageSeen", "invalid_status", "pipeline_status", "refused_status"]

_STUCK: Final = frozenset(reason.value for reason in NEEDS_A_CHANGE)
_FOLLOWS: Final = frozenset({StageReason.PROGRESSING.value, StageReason.NOT_ROUTABLE.value})
"""Reasons that often follow from another stage's."""
_FINE: Final = frozenset({StageReason.READY.value, StageReason.SCALED_TO_ZERO.value})


class StageSeen(Struct, frozen=True, kw_only=True):
    """A stage of the target revision, as its `Stage` has it."""

    name: StageName
    service: PublishedService
    wanted: int
    """Replicas that its spec asks for."""
    status: StageStatus

    @property
    def current(self) -> bool:
        """Whether its status speaks of the revision that the pipeline asks for."""
        return self.status.revision == self.service.revision

    @property
    def ready(self) -> bool:
        """Whether all the replicas that it should have are ready."""
        return self.current and self.ready_replicas >= self.wanted

    @property
    def ready_replicas(self) -> int:
        """Ready replicas of the target revision."""
        return self._of_revision("ready")

    @property
    def updated_replicas(self) -> int:
        """Replicas of the target revision."""
        return self._of_revision("updated")

    def _of_revision(self, name: str) -> int:
        found = (
            getattr(each, name)
            for each in self.status.revisions
            if each.revision == self.service.revision
        )
        return next(found, 0)


class Seen(Struct, frozen=True, kw_only=True):
    """What is known of a pipeline that can be resolved."""

    pipeline: Json
    plan: PipelinePlan
    stages: Sequence[StageSeen]
    step: RolloutStep
    gateways: Sequence[str]
    """Those that live."""
    silent: Sequence[str]
    """Of those, the ones that have not said anything."""
    taken: Mapping[ModelName, str]
    url: str


def pipeline_status(seen: Seen, now: str) -> dict[str, Any]:
    """The status of a pipeline that can be resolved."""
    metadata, previous = seen.pipeline["metadata"], seen.pipeline.get("status", {})
    stages = [_stage(seen, stage) for stage in seen.stages]
    claims = _claims(seen, stages)
    served = sum(_served(stage) for stage in stages)
    status: dict[str, Any] = {
        "observedGeneration": metadata["generation"],
        "currentRevision": seen.step.current,
        "targetRevision": seen.plan.revision,
        "turn": seen.step.turn,
        "conditions": conditions(
            claims,
            previous=previous.get("conditions", []),
            generation=metadata["generation"],
            now=now,
        ),
        "stagesReady": f"{served}/{len(stages)}",
        "stages": stages,
        "revisions": [
            {"revision": revision, "phase": phase.value}
            for revision, phase in sorted(seen.step.phases.items())
        ],
    }
    if seen.url:
        status["url"] = seen.url
    return status


def invalid_status(
    pipeline: Json, invalid: ResourceProblems, reason: StageReason, now: str
) -> dict[str, Any]:
    """The status of a pipeline that cannot be resolved: what served goes on to serve."""
    message = "; ".join(str(problem) for problem in invalid.problems)
    return _unserved(pipeline, reason.value, message, valid=False, now=now)


def refused_status(pipeline: Json, message: str, now: str) -> dict[str, Any]:
    """The status of a pipeline of which the API server refuses a part; what served goes on to serve.

    Args:
        pipeline: The object.
        message: The API server's own words.
        now: The time.
    """
    return _unserved(pipeline, "WriteRefused", message, valid=True, now=now)


def _unserved(
    pipeline: Json, reason: str, message: str, *, valid: bool, now: str
) -> dict[str, Any]:
    metadata, previous = pipeline["metadata"], pipeline.get("status", {})
    message = message[:MAX_MESSAGE]
    claims = [
        Claim(type="Ready", holds=False, reason=reason, message=message),
        Claim(
            type="GraphValid",
            holds=valid,
            reason="Valid" if valid else reason,
            message="" if valid else message,
        ),
        Claim(type="Reconciling", holds=False, reason=reason),
        Claim(type="Stalled", holds=True, reason=reason, message=message),
    ]
    kept = ("currentRevision", "turn", "stages", "stagesReady", "revisions", "url")
    return {
        **{name: previous[name] for name in kept if name in previous},
        "observedGeneration": metadata["generation"],
        "conditions": conditions(
            claims,
            previous=previous.get("conditions", []),
            generation=metadata["generation"],
            now=now,
        ),
    }


def _stage(seen: Seen, stage: StageSeen) -> dict[str, Any]:
    ready = stage.ready_replicas
    serves = seen.step.routable and seen.step.current == seen.plan.revision
    reason, message = _reason(stage)
    if reason == StageReason.READY.value and not serves:
        reason, message = _not_routable(seen)
    return {
        "name": stage.name,
        "stage": stage.service.stage,
        "desired": stage.wanted,
        "ready": ready,
        "routable": ready if serves else 0,
        "updated": stage.updated_replicas,
        "revision": stage.service.revision,
        "reason": reason,
        "message": message,
    }


def _reason(stage: StageSeen) -> tuple[str, str]:
    status = stage.status
    if not stage.current:
        return StageReason.PROGRESSING.value, f"Stage {stage.service.stage} is being made"
    if stage.ready and status.reason in {None, StageReason.READY.value}:
        return StageReason.READY.value, ""
    return status.reason or StageReason.PROGRESSING.value, status.message


def _not_routable(seen: Seen) -> tuple[str, str]:
    if not all(stage.ready for stage in seen.stages):
        return StageReason.PROGRESSING.value, "ready; waits for the other stages"
    if not seen.gateways:
        message = "no gateway is ready; look at the pods of the gateway's Deployment"
    elif seen.silent:
        message = f"waiting for the gateway {seen.silent[0]} to say what it reaches"
    else:
        message = "the replicas are ready, and not every gateway reaches them yet"
    return StageReason.NOT_ROUTABLE.value, message


def _served(stage: Mapping[str, Any]) -> bool:
    """Whether a stage is updated, ready and routable."""
    least = min(stage["updated"], stage["ready"], stage["routable"])
    return bool(least >= stage["desired"] and stage["reason"] in _FINE)


def _claims(seen: Seen, stages: Sequence[Mapping[str, Any]]) -> list[Claim]:
    waiting = [stage for stage in stages if not _served(stage)]
    stuck = [stage for stage in waiting if stage["reason"] in _STUCK]
    moving = any(phase is not RevisionPhase.SERVING for phase in seen.step.phases.values())
    moving = moving or len(seen.step.phases) > 1
    taken = [f"{name} ({owner})" for name, owner in sorted(seen.taken.items())]
    available = all(stage.ready for stage in seen.stages)
    ready = not waiting and not taken and seen.step.current == seen.plan.revision
    reason, message = _explained([*stuck, *waiting], taken)
    return [
        Claim(type="Ready", holds=ready, reason=reason, message=message),
        Claim(type="GraphValid", holds=True, reason="Valid"),
        Claim(
            type="StagesAvailable",
            holds=available,
            reason="StagesAvailable" if available else reason,
            message="" if available else message,
        ),
        _routable(seen),
        Claim(
            type="Progressing",
            holds=moving,
            reason="RollingOut" if moving else "Settled",
            message=_rolling(seen) if moving else "",
        ),
        Claim(type="Reconciling", holds=not ready and not stuck, reason=reason, message=message),
        Claim(
            type="Stalled",
            holds=bool(stuck or taken),
            reason=reason if stuck or taken else "Settled",
            message=message if stuck or taken else "",
        ),
    ]


def _explained(waiting: Sequence[Mapping[str, Any]], taken: Sequence[str]) -> tuple[str, str]:
    if taken:
        return "NameTaken", (
            f"an older pipeline serves {', '.join(taken)} already; write other `servedNames`"
        )
    if not waiting:
        return StageReason.READY.value, ""
    first = min(waiting, key=lambda stage: stage["reason"] in _FOLLOWS)
    more = f" (and {len(waiting) - 1} more)" if len(waiting) > 1 else ""
    return first["reason"], f"stage {first['name']}: {first['message'] or first['reason']}{more}"


def _routable(seen: Seen) -> Claim:
    if not seen.gateways:
        return Claim(
            type="Routable", holds=False, reason="NoGateway", message="no gateway is ready"
        )
    behind = seen.silent or ([] if seen.step.routable else ["a gateway"])
    return Claim(
        type="Routable",
        holds=seen.step.routable,
        reason="Routable" if seen.step.routable else StageReason.NOT_ROUTABLE.value,
        message=f"{behind[0]} does not reach every stage of {seen.step.current}" if behind else "",
    )


def _rolling(seen: Seen) -> str:
    others: list[Revision] = sorted(set(seen.step.phases) - {seen.plan.revision})
    return f"to revision {seen.plan.revision}; still there: {', '.join(others) or 'none'}"
