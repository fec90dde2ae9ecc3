"""Labels of a stage's children: who made them, for which stage, for which revision of it.

The workload of a revision selects its pods by two of them, and a selector can never be changed: neither
can these.
"""

from enum import Enum
from typing import Final

from omnistage_common.ids import Revision
from omnistage_common.pipeline.published import NAME_LABEL, STAGE_LABEL
from omnistage_operator.planning.decisions import Json

__all__ = [
    "MANAGED_BY",
    "REVISION_LABEL",
    "GangRole",
    "every_replica",
    "gang_label",
    "is_follower",
    "replica_labels",
    "replica_selector",
    "stage_labels",
]

MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "omnistage-operator"}
REVISION_LABEL: Final = "omnistage.io/revision"
"""Revision of the stage."""
_GANG_LABEL: Final = "omnistage.io/gang"


class GangRole(Enum):
    """What a pod is to the others of its replica, where that spans nodes."""

    LEADER = "leader"
    """The one that serves; the replica is as ready as this one."""
    FOLLOWER = "follower"


def gang_label(role: GangRole) -> dict[str, str]:
    """On the pods of a gang."""
    return {_GANG_LABEL: role.value}


def is_follower(pod: Json) -> bool:
    """Whether a pod is part of a replica that is counted by another one."""
    labels = pod["metadata"].get("labels") or {}
    return bool(labels.get(_GANG_LABEL) == GangRole.FOLLOWER.value)


def stage_labels(stage: str) -> dict[str, str]:
    """On everything of a stage."""
    return {NAME_LABEL: "omnistage-stage", **MANAGED_BY, STAGE_LABEL: stage}


def replica_labels(stage: str, revision: Revision) -> dict[str, str]:
    """On everything of one revision of a stage."""
    return {**stage_labels(stage), REVISION_LABEL: revision}


def every_replica(stage: str) -> str:
    """Selects one pod of each replica of a stage, whatever its revision.

    An autoscaler reads with it how busy a stage is. While a revision takes over from another, both count,
    as both count among the replicas: the new ones alone would look idle.
    """
    # Not `!=`, which kubectl does not read here.
    return f"{STAGE_LABEL}={stage},{_GANG_LABEL} notin ({GangRole.FOLLOWER.value})"


def replica_selector(stage: str, revision: Revision, *, gang: bool = False) -> dict[str, str]:
    """What tells the replicas of one revision from all other pods.

    Args:
        stage: Name of the `Stage`.
        revision: Of the stage.
        gang: Whether its replicas span nodes; then each is chosen by its leader.
    """
    leaders = gang_label(GangRole.LEADER) if gang else {}
    return {STAGE_LABEL: stage, REVISION_LABEL: revision, **leaders}
