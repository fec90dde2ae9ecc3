"""Conditions that move only when something changed.

A condition's time is when its status last changed, so the one that was written before decides. Whoever
plans says what holds; this puts the times to it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from omnistage_common.pipeline.resources.status import MAX_MESSAGE
from omnistage_operator.planning.decisions import Json

__all__ = ["Claim", "conditions"]


class Claim(Struct, frozen=True, kw_only=True):
    """Something that holds, does not, or cannot be told."""

    type: str
    holds: bool | None
    """None when it cannot be told."""
    reason: str
    message: str = ""


def conditions(
    claims: Iterable[Claim], *, previous: Sequence[Json], generation: int, now: str
) -> list[dict[str, Any]]:
    """Claims as conditions.

    Args:
        claims: What holds, each type once.
        previous: Conditions as they were written before.
        generation: Of the spec that was looked at.
        now: The time, as a cluster writes it.
    """
    before = {each.get("type"): each for each in previous}
    return [_condition(claim, before.get(claim.type), generation, now) for claim in claims]


def _condition(claim: Claim, before: Json | None, generation: int, now: str) -> dict[str, Any]:
    status = {True: "True", False: "False", None: "Unknown"}[claim.holds]
    same = before is not None and before.get("status") == status
    return {
        "type": claim.type,
        "status": status,
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if before and same else now,
        "reason": claim.reason,
        "message": claim.message[:MAX_MESSAGE],
    }
