"""What an engine is told, from what its replica is told."""

from omnistage_common.errors import SetupError
from omnistage_common.ids import OutputName
from omnistage_common.pipeline.assignments import Assignment
from omnistage_common.pipeline.plan import EdgeMode, StagePlan
from omnistage_stage.engines.protocol import EngineSpec, Gang, InputSpec

__all__ = ["spec_of"]


def spec_of(assignment: Assignment, gang: Gang | None) -> EngineSpec:
    """The spec of a replica's engine.

    Args:
        assignment: What the replica is told.
        gang: Which of its processes this is, where it has several.

    Raises:
        SetupError: The assignment asks for a gang and there is none, or the other way round.
    """
    stage = assignment.stage
    nodes = stage.parallelism.nodes
    if (gang is not None) != (nodes > 1) or (gang is not None and not 0 <= gang.rank < nodes):
        raise SetupError(
            f"stage {stage.name} has parallelism.nodes {nodes}, and this process is told "
            + (f"--gang-rank {gang.rank}" if gang is not None else "no --gang-rank"),
            field="--gang-rank",
        )
    return EngineSpec(
        stage=stage.name,
        model=stage.model,
        args=stage.engine_args,
        max_running=stage.limits.max_running,
        produces={item.name: item.kind for item in stage.produces},
        consumes=_consumed(stage),
        parallelism=stage.parallelism,
        gang=gang,
    )


def _consumed(stage: StagePlan) -> dict[OutputName, InputSpec]:
    """What may arrive at a stage, from the request and from its producers."""
    consumed = {item.name: InputSpec(kind=item.kind) for item in stage.consumes}
    for item in stage.receives:
        consumed[item.name] = InputSpec(
            kind=item.kind,
            streams=item.mode is EdgeMode.STREAM,
            context_frames=item.context_frames,
        )
    return consumed
