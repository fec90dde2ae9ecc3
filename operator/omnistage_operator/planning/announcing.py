"""What is worth an event: a transition between two statuses, never a state by itself."""

from collections.abc import Iterator

from msgspec import Struct

from omnistage_operator.planning.decisions import Json
from omnistage_operator.planning.reasons import NEEDS_A_CHANGE

__all__ = ["Announcement", "announcements"]

_WARNINGS = frozenset(reason.value for reason in NEEDS_A_CHANGE) | {
    "InsufficientCapacity",
    "NameTaken",
    "QuotaExceeded",
    "StageMissing",
    "TemplateMissing",
}
"""Reasons that somebody should look at."""


class Announcement(Struct, frozen=True, kw_only=True):
    """Something that happened to an object."""

    reason: str
    action: str
    note: str
    warning: bool = False
    """Whether somebody should look."""


def announcements(before: Json, after: Json) -> Iterator[Announcement]:
    """What happened between two statuses of a pipeline or a stage."""
    old, new = _ready(before), _ready(after)
    serving = after.get("currentRevision")
    if serving and serving != before.get("currentRevision"):
        yield Announcement(
            reason="RevisionServing",
            action="Rollout",
            note=f"new requests go to revision {serving}",
        )
    if new.get("status") == "True" and old.get("status") != "True":
        yield Announcement(reason="Ready", action="Reconcile", note="every replica is ready")
    elif new.get("status") == "False" and new.get("reason") != old.get("reason"):
        reason = new["reason"]
        if reason in _WARNINGS:
            yield Announcement(
                reason=reason, action="Reconcile", note=new.get("message") or reason, warning=True
            )


def _ready(status: Json) -> Json:
    found: list[Json] = [
        each for each in status.get("conditions", []) if each.get("type") == "Ready"
    ]
    return found[0] if found else {}
