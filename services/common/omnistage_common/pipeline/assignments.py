"""An assignment: all that one replica is told when it starts.

A stage knows neither the pipelines that use it nor its neighbours, so that several pipelines can share
it and only its own changes start it anew. It travels as a file of JSON.
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from omnistage_common.errors import SetupError
from omnistage_common.ids import StageName
from omnistage_common.pipeline.plan import PipelinePlan, StagePlan, TransportChoice

__all__ = ["Assignment", "assignment_of", "encode_assignment", "read_assignment"]


class Assignment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See the module."""

    stage: StagePlan
    transport: TransportChoice = TransportChoice.AUTO
    """How it may read tensors of other replicas."""
    drain: float
    """Seconds that running requests have when the replica goes."""


_ENCODER = msgspec.json.Encoder(order="deterministic")


def assignment_of(plan: PipelinePlan, stage: StageName) -> Assignment:
    """What the replicas of a pipeline's stage are told.

    Raises:
        KeyError: The pipeline has no such stage.
    """
    return Assignment(stage=plan.stage(stage), transport=plan.transport, drain=plan.timeouts.drain)


def encode_assignment(assignment: Assignment) -> bytes:
    """The assignment as JSON; equal ones give equal bytes."""
    return _ENCODER.encode(assignment)


def read_assignment(path: Path) -> Assignment:
    """The assignment in a file.

    Raises:
        SetupError: The file cannot be read or holds no assignment.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Assignment)
    except OSError as unreadable:
        raise SetupError(
            f"cannot read the assignment {path}: {unreadable.strerror}", field="--assignment"
        ) from unreadable
    except msgspec.DecodeError as malformed:
        raise SetupError(
            f"{path} is not an assignment: {malformed}; `omnistage up FILE` writes them, and so"
            " does the operator",
            field="--assignment",
        ) from malformed
