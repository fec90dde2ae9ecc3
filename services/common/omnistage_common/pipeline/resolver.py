"""Resources to a plan: every value final, each with where it came from.

Pure: the same resources and overrides give the same plan, byte for byte. Layers, lowest first:
built-in defaults, template (or the pipeline's own topology), runtime, pipeline, command line.
Scalars are replaced; `engineArgs` merge by key and `env` by name. A pipeline's `model.source` stands
below the template's own model of a stage, for it is meant for the stages that have none. A shared
`Stage` stands for itself: the template's defaults do not reach into it.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from omnistage_common.ids import ModelName, PipelineName, Revision, StageName
from omnistage_common.pipeline.graph import successors_of, topological_order
from omnistage_common.pipeline.loading import Resources
from omnistage_common.pipeline.merging import Surroundings, resolve_stage
from omnistage_common.pipeline.origins import OriginLog
from omnistage_common.pipeline.overrides import Override, command_line_of
from omnistage_common.pipeline.plan import (
    ChunkPlan,
    EdgeMode,
    EdgePlan,
    Origin,
    OutputPlan,
    PipelinePlan,
    StagePlan,
    Timeouts,
    TransportChoice,
    received_by,
)
from omnistage_common.pipeline.problems import ResourceProblems, raise_errors
from omnistage_common.pipeline.quantities import seconds_of
from omnistage_common.pipeline.resources import ChunkPolicy, TimeoutSettings, Topology
from omnistage_common.pipeline.revisions import pipeline_revision
from omnistage_common.pipeline.selecting import Selection, choose_pipeline, select
from omnistage_common.pipeline.validation import selection_problems

__all__ = ["plan_of", "resolve", "selected"]


def resolve(
    resources: Resources,
    *,
    pipeline: PipelineName | None = None,
    overrides: Sequence[Override] = (),
) -> PipelinePlan:
    """The plan of one pipeline.

    Args:
        resources: Everything the pipeline may refer to.
        pipeline: Its name; None for the only one there is.
        overrides: From a command line; later ones win.

    Raises:
        ResourceProblems: With every error of the files and of this pipeline.
    """
    return plan_of(selected(resources, pipeline=pipeline, overrides=overrides))


def selected(
    resources: Resources,
    *,
    pipeline: PipelineName | None = None,
    overrides: Sequence[Override] = (),
    in_cluster: bool = False,
) -> Selection:
    """What one pipeline is made of, without errors; see `resolve`."""
    raise_errors(resources.problems)
    command_line, problems = command_line_of(overrides)
    raise_errors(problems)
    selection, problems = select(resources, choose_pipeline(resources, pipeline), command_line)
    if selection is None:
        raise ResourceProblems(problems)
    raise_errors((*problems, *selection_problems(selection, in_cluster=in_cluster)))
    return selection


def plan_of(selection: Selection) -> PipelinePlan:
    """The plan of a pipeline without errors."""
    metadata = selection.document.resource.metadata
    log = OriginLog()
    topology = selection.graph.topology
    edges, transport = _edges(selection, log), _transport(selection, log)
    timeouts = Timeouts(
        request=_timeout(selection, "request", log), drain=_timeout(selection, "drain", log)
    )
    around = {
        stage.name: Surroundings(
            receives=received_by(stage.name, edges), drain=timeouts.drain, transport=transport
        )
        for stage in topology.stages
    }
    plan = PipelinePlan(
        name=PipelineName(metadata.name),
        namespace=metadata.namespace,
        served_names=_served_names(selection, log),
        stages=_stages(selection, log, around),
        edges=edges,
        outputs=_outputs(topology),
        timeouts=timeouts,
        revision=Revision(""),
        transport=transport,
        origins=log.origins,
    )
    log.note("name", Origin.PIPELINE)
    named = "namespace" in metadata.model_fields_set
    log.note("namespace", Origin.PIPELINE if named else Origin.BUILT_IN)
    log.note("outputs", selection.graph.origin)
    shared = {
        stage.template.name: stage.shared.resource.metadata.name
        for stage in selection.stages
        if stage.shared is not None
    }
    return replace(plan, revision=pipeline_revision(plan, shared))


def _served_names(selection: Selection, log: OriginLog) -> tuple[ModelName, ...]:
    own = (ModelName(selection.document.resource.metadata.name),)
    return log.last(
        "served_names",
        [(Origin.BUILT_IN, own)]
        + [(each.origin, each.spec.model.served_names or None) for each in selection.specs],
    )


def _stages(
    selection: Selection, log: OriginLog, around: Mapping[StageName, Surroundings]
) -> tuple[StagePlan, ...]:
    topology = selection.graph.topology
    successors = successors_of(
        [stage.name for stage in topology.stages],
        [(edge.producer, edge.consumer) for edge in topology.edges],
    )
    by_name = {stage.template.name: stage for stage in selection.stages}
    return tuple(
        resolve_stage(selection, by_name[name], log, around[name])
        for name in topological_order(successors)
    )


def _edges(selection: Selection, log: OriginLog) -> tuple[EdgePlan, ...]:
    topology = selection.graph.topology
    kinds = {
        (stage.name, port.name): port.kind for stage in topology.stages for port in stage.produces
    }
    log.note("edges", selection.graph.origin)
    chunked = selection.chunked
    return tuple(
        EdgePlan(
            producer=edge.producer,
            consumer=edge.consumer,
            output=edge.output,
            kind=kinds[edge.producer, edge.output],
            mode=edge.mode if chunked else EdgeMode.FULL,
            optional=edge.optional,
            chunk=_chunk(edge.chunk) if chunked else None,
        )
        for edge in topology.edges
    )


def _chunk(policy: ChunkPolicy | None) -> ChunkPlan | None:
    if policy is None:
        return None
    return ChunkPlan(
        first_frames=policy.first_frames,
        frames=policy.frames,
        context_frames=policy.context_frames,
    )


def _outputs(topology: Topology) -> tuple[OutputPlan, ...]:
    kinds = {
        (stage.name, port.name): port.kind for stage in topology.stages for port in stage.produces
    }
    return tuple(
        OutputPlan(
            stage=output.stage,
            output=output.output,
            kind=kinds[output.stage, output.output],
            modality=output.modality,
        )
        for output in topology.outputs
    )


def _timeout(selection: Selection, name: str, log: OriginLog) -> float:
    candidates = [(Origin.BUILT_IN, getattr(TimeoutSettings(), name))] + [
        (
            each.origin,
            getattr(each.spec.timeouts, name)
            if name in each.spec.timeouts.model_fields_set
            else None,
        )
        for each in selection.specs
    ]
    return seconds_of(log.last(f"timeouts.{name}", candidates))


def _transport(selection: Selection, log: OriginLog) -> TransportChoice:
    return log.last(
        "transport",
        [(Origin.BUILT_IN, TransportChoice.AUTO)]
        + [
            (each.origin, each.spec.transfer.transport)
            for each in selection.specs
            if "transport" in each.spec.transfer.model_fields_set
        ],
    )
