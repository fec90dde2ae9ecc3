"""Between a pipeline and the `Stage` objects that a cluster makes of it.

In a cluster each stage stands by itself: whoever runs it reads a `Stage` and its `StageRuntime`, and
knows no pipeline. `stand_alone` writes the stages of a pipeline in that form; `resolve_stage_alone`
resolves one of them. They fit: a stage that was written down has the revision that it had within its
pipeline, so that both sides name the same pods without asking each other.
"""

from dataclasses import dataclass

from msgspec.structs import asdict, replace

from omnistage_common.ids import StageName
from omnistage_common.pipeline.assignments import Assignment
from omnistage_common.pipeline.loading import Document, Resources
from omnistage_common.pipeline.merging import (
    final_variables,
    resolve_stage,
    surroundings_of_shared,
)
from omnistage_common.pipeline.origins import OriginLog
from omnistage_common.pipeline.overrides import command_line_of
from omnistage_common.pipeline.plan import ParallelPlan, PipelinePlan, StagePlan
from omnistage_common.pipeline.problems import ResourceProblems, raise_errors
from omnistage_common.pipeline.quantities import duration_of
from omnistage_common.pipeline.resolver import plan_of, selected
from omnistage_common.pipeline.resources import (
    Autoscaling,
    EnvVar,
    FinalOutput,
    InferencePipeline,
    InferencePipelineSpec,
    LimitsOverride,
    NamespacedMetadata,
    Parallelism,
    Port,
    ReceivedPort,
    Reference,
    RequestInput,
    Stage,
    StageOverride,
    StageRuntime,
    StageRuntimeSpec,
    StageSpec,
    StageTemplate,
    Topology,
    Transfer,
)
from omnistage_common.pipeline.selecting import Selection, StageSelection, select
from omnistage_common.pipeline.validation import stage_problems

__all__ = [
    "StagePlacement",
    "StandingPipeline",
    "StandingStage",
    "resolve_stage_alone",
    "stand_alone",
]

_ANY: StageName = StageName("stage")
"""What a stage is called while it is looked at without a pipeline."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StandingStage:
    """A stage by itself, every value final."""

    assignment: Assignment
    """What its replicas are told; the plan's name is that of the `Stage`."""
    runtime: StageRuntimeSpec | None
    """Image, resources and placement of its pods; None where no runtime is named."""
    secrets: tuple[EnvVar, ...]
    """Environment variables that come from Secrets."""
    autoscaling: Autoscaling | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlacement:
    """Which `Stage` serves as a stage of a pipeline."""

    name: StageName
    """Within the pipeline."""
    shared: str | None
    """Name of the `Stage` that `stageRef` names; None for one that belongs to the pipeline."""
    spec: StageSpec | None
    """What to write in the pipeline's own; None for a shared one."""
    replicas_written: bool
    """Whether somebody wrote how many replicas there are, in the pipeline or its template."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StandingPipeline:
    """A pipeline whose stages stand by themselves."""

    plan: PipelinePlan
    stages: tuple[StagePlacement, ...]
    """In the plan's order."""


def stand_alone(resources: Resources) -> StandingPipeline:
    """The plan of the only pipeline among the resources, and its stages as `Stage` specs.

    Raises:
        ResourceProblems: With every error of the pipeline.
    """
    selection = selected(resources, in_cluster=True)
    plan = plan_of(selection)
    by_name = {stage.template.name: stage for stage in selection.stages}
    return StandingPipeline(
        plan=plan,
        stages=tuple(
            _placement(selection, by_name[stage.name], stage, plan) for stage in plan.stages
        ),
    )


def resolve_stage_alone(stage: Stage, runtime: StageRuntime | None) -> StandingStage:
    """A `Stage` with every value final.

    Args:
        stage: As it was written.
        runtime: The one that it names, where there is one of that name.

    Raises:
        ResourceProblems: With every error of the stage; one is that the runtime is not there.
    """
    selection, chosen = _alone(stage, runtime)
    plan = resolve_stage(selection, chosen, OriginLog(), surroundings_of_shared(stage.spec))
    return StandingStage(
        assignment=Assignment(
            stage=replace(plan, name=StageName(stage.metadata.name)),
            transport=stage.spec.transfer.transport,
            drain=surroundings_of_shared(stage.spec).drain,
        ),
        runtime=runtime.spec if runtime is not None else None,
        secrets=tuple(
            variable
            for _, variable in final_variables(selection, chosen)
            if variable.secret_key is not None
        ),
        autoscaling=stage.spec.autoscaling,
    )


def _alone(stage: Stage, runtime: StageRuntime | None) -> tuple[Selection, StageSelection]:
    """A stage as the one stage of a pipeline."""
    spec = stage.spec
    template = StageTemplate(
        name=_ANY, execution=spec.execution, consumes=spec.consumes, produces=spec.produces
    )
    topology = Topology(
        stages=(template,), outputs=(FinalOutput(stage=_ANY, output=spec.produces[0].name),)
    )
    use = StageOverride(name=_ANY, stage_ref=Reference(name=stage.metadata.name))
    pipeline = InferencePipeline(
        metadata=NamespacedMetadata(name=stage.metadata.name, namespace=stage.metadata.namespace),
        spec=InferencePipelineSpec(topology=topology, stages=(use,)),
    )
    resources = Resources.of(pipeline, stage, *([runtime] if runtime is not None else []))
    command_line, _ = command_line_of(())
    selection, problems = select(resources, resources.pipelines[0], command_line)
    if selection is None:
        raise ResourceProblems(problems)
    raise_errors((*problems, *stage_problems(selection, in_cluster=True)))
    return selection, selection.stages[0]


def _placement(
    selection: Selection, stage: StageSelection, plan: StagePlan, pipeline: PipelinePlan
) -> StagePlacement:
    if stage.shared is not None:
        return StagePlacement(
            name=plan.name,
            shared=stage.shared.resource.metadata.name,
            spec=None,
            replicas_written=True,
        )
    scaling = _autoscaling(stage)
    return StagePlacement(
        name=plan.name,
        shared=None,
        spec=StageSpec(
            replicas=None if scaling is not None else plan.replicas,
            autoscaling=scaling,
            runtime=_reference(stage.runtime),
            parallelism=_parallelism(plan),
            model=plan.model or None,
            engine_args=plan.engine_args,
            env=tuple(variable for _, variable in final_variables(selection, stage)),
            limits=_limits(plan),
            execution=plan.execution,
            engine=plan.engine,
            consumes=tuple(
                RequestInput(name=each.name, kind=each.kind, optional=each.optional)
                for each in plan.consumes
            ),
            receives=tuple(
                ReceivedPort(
                    name=each.name,
                    kind=each.kind,
                    mode=each.mode,
                    context_frames=each.context_frames,
                )
                for each in plan.receives
            ),
            produces=tuple(Port(name=each.name, kind=each.kind) for each in plan.produces),
            drain=duration_of(pipeline.timeouts.drain),
            transfer=Transfer(transport=pipeline.transport),
        ),
        replicas_written=scaling is None and _replicas_written(stage),
    )


def _limits(plan: StagePlan) -> LimitsOverride:
    return LimitsOverride(
        max_running=plan.limits.max_running,
        max_queued=plan.limits.max_queued,
        slab_bytes=str(plan.limits.slab_bytes),
        device_slab_bytes=str(plan.limits.device_slab_bytes)
        if plan.limits.device_slab_bytes
        else None,
    )


def _reference(runtime: Document[StageRuntime] | None) -> Reference | None:
    return Reference(name=runtime.resource.metadata.name) if runtime is not None else None


def _autoscaling(stage: StageSelection) -> Autoscaling | None:
    """That of the topmost layer that says how many replicas there are."""
    for each in reversed(stage.written):
        if each.settings.autoscaling is not None or each.settings.replicas is not None:
            return each.settings.autoscaling
    return None


def _parallelism(plan: StagePlan) -> Parallelism | None:
    if plan.parallelism == ParallelPlan():
        return None
    return Parallelism(**asdict(plan.parallelism))


def _replicas_written(stage: StageSelection) -> bool:
    in_template = "replicas" in stage.template.defaults.model_fields_set
    return in_template or any(each.settings.replicas is not None for each in stage.written)
