"""Labels of a stage's children: who made them, for which stage, for which revision of it.

The workload of a revision selects its pods by two of them, and a selector can never be changed: neither
can these.
"""

from typing import Final

from omnistage_common.ids import Revision
from omnistage_common.pipeline.published import NAME_LABEL, STAGE_LABEL

__all__ = [
    "MANAGED_BY",
    "REVISION_LABEL",
    "replica_labels",
    "replica_selector",
    "stage_labels",
]

MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "omnistage-operator"}
REVISION_LABEL: Final = "omnistage.io/revision"
"""Revision of the stage."""


def stage_labels(stage: str) -> dict[str, str]:
    """On everything of a stage."""
    return {NAME_LABEL: "omnistage-stage", **MANAGED_BY, STAGE_LABEL: stage}


def replica_labels(stage: str, revision: Revision) -> dict[str, str]:
    """On everything of one revision of a stage."""
    return {**stage_labels(stage), REVISION_LABEL: revision}


def replica_selector(stage: str, revision: Revision) -> dict[str, str]:
    """What tells the pods of one revision from all others."""
    return {STAGE_LABEL: stage, REVISION_LABEL: revision}
