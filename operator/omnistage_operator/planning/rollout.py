"""Which revision of a pipeline serves, and which may go: a machine without I/O.

A pipeline has a *target* (what its spec resolves to) and a *current* revision (where gateways send new
requests). It looks only at what is there now, so that a restart half-way changes nothing and going
back to an older revision is the same as going on to a newer one. Two rules protect requests: current
moves to a target only when that can carry the load (or when the user gave up the room for both), and a
plan goes only when no gateway sends or has requests on it.
"""

from dataclasses import dataclass

from omnistage_common.ids import Revision
from omnistage_common.pipeline.resources import RolloutStrategy
from omnistage_common.pipeline.resources.status import GatewayStatus, RevisionPhase

__all__ = ["Rollout", "RolloutStep", "next_step"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """What is known of the revisions of one pipeline."""

    target: Revision
    current: Revision | None
    """None when nothing has served yet."""
    turn: int
    """How often current has changed."""
    plans: frozenset[Revision]
    """Revisions whose plan exists."""
    target_ready: bool
    """Whether every stage of the target has all its replicas ready."""
    strategy: RolloutStrategy
    gateways: tuple[GatewayStatus, ...]
    """What the gateways that live say."""
    silent: tuple[str, ...] = ()
    """Gateways that live and have said nothing yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutStep:
    """What follows."""

    current: Revision
    turn: int
    phases: dict[Revision, RevisionPhase]
    """Of every revision that is there after this step."""
    retired: tuple[Revision, ...]
    """Revisions whose plan goes now."""
    routable: bool
    """Whether every gateway reaches all stages of the current revision; false without gateways."""


def next_step(rollout: Rollout) -> RolloutStep:
    """What follows from what is known. The target's plan is taken to be written by the caller."""
    current = _current(rollout)
    turn = rollout.turn + (current != rollout.current)
    plans = rollout.plans | {rollout.target}
    retired = tuple(
        sorted(
            revision
            for revision in plans - {current, rollout.target}
            if not _needed(revision, turn, rollout)
        )
    )
    reached = not rollout.silent and all(
        gateway.turn == turn and current in gateway.routable for gateway in rollout.gateways
    )
    in_place = rollout.strategy is RolloutStrategy.IN_PLACE
    return RolloutStep(
        current=current,
        turn=turn,
        phases={
            revision: _phase(revision, current, rollout.target, leave=reached or in_place)
            for revision in sorted(plans - set(retired))
        },
        retired=retired,
        routable=reached and bool(rollout.gateways),
    )


def _current(rollout: Rollout) -> Revision:
    if rollout.current is None or rollout.current not in rollout.plans:
        return rollout.target
    if rollout.target_ready or rollout.strategy is RolloutStrategy.IN_PLACE:
        return rollout.target
    return rollout.current


def _needed(revision: Revision, turn: int, rollout: Rollout) -> bool:
    """Whether a gateway sends requests to a revision, has some on it, or may yet begin to.

    A gateway that knows what is current goes to that or stays where it is. One that has said nothing,
    or speaks of an earlier turn, is waited for: without turns, what it said when a revision was current
    for the first time would be taken for its word on the second.
    """
    return bool(rollout.silent) or any(
        gateway.turn != turn or gateway.serving == revision or revision in gateway.in_use
        for gateway in rollout.gateways
    )


def _phase(
    revision: Revision, current: Revision, target: Revision, *, leave: bool
) -> RevisionPhase:
    """A gateway leaves a revision that drains, even when it cannot reach the current one."""
    if revision == current:
        return RevisionPhase.SERVING
    if revision == target:
        return RevisionPhase.PREPARING
    return RevisionPhase.DRAINING if leave else RevisionPhase.SERVING
