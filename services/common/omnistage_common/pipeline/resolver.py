"""Resources to a plan: every value final, each with where it came from.

Pure: the same resources and overrides give the same plan, byte for byte. Layers, lowest first:
built-in defaults, template (or the pipeline's own topology), runtime, pipeline, command line.
Scalars are replaced; `engineArgs` merge by key and `env` by name. A pipeline's `model.source` stands
below the template's own model of a stage, for it is meant for the stages that have none. A shared
`Stage` stands for itself: the template's defaults do not reach into it.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from omnistage_common.ids import ModelName, PipelineName, Revision
from omnistage_common.pipeline.graph import successors_of, topological_order
from omnistage_common.pipeline.loading import Resources
from omnistage_common.pipeline.merging import resolve_stage
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
)
from omnistage_common.pipeline.problems import ResourceProblems, raise_errors
from omnistage_common.pipeline.quantities import seconds_of
from omnistage_common.pipeline.resources import ChunkPolicy, TimeoutSettings, Topology
from omnistage_common.pipeline.revisions import pipeline_revision
from omnistage_common.pipeline.selecting import Selection, choose_pipeline, select
from omnistage_common.pipeline.validation import selection_problems

__all__ = ["resolve"]


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
    raise_errors(resources.problems)
    command_line, problems = command_line_of(overrides)
    raise_errors(problems)
    selection, problems = select(resources, choose_pipeline(resources, pipeline), command_line)
    if selection is None:
        raise ResourceProblems(problems)
    raise_errors((*problems, *selection_problems(selection)))
    return _plan(selection)


def _plan(selection: Selection) -> PipelinePlan:
    metadata = selection.document.resource.metadata
    log = OriginLog()
    topology = selection.graph.topology
    plan = PipelinePlan(
        name=PipelineName(metadata.name),
        namespace=metadata.namespace,
        served_names=_served_names(selection, log),
        stages=_stages(selection, log),
        edges=_edges(selection, log),
        outputs=_outputs(topology),
        timeouts=Timeouts(
            request=_timeout(selection, "request", log), drain=_timeout(selection, "drain", log)
        ),
        revision=Revision(""),
        transport=_transport(selection, log),
        origins=log.origins,
    )
    log.note("name", Origin.PIPELINE)
    named = "namespace" in metadata.model_fields_set
    log.note("namespace", Origin.PIPELINE if named else Origin.BUILT_IN)
    log.note("outputs", selection.graph.origin)
    return replace(plan, revision=pipeline_revision(plan))


def _served_names(selection: Selection, log: OriginLog) -> tuple[ModelName, ...]:
    own = (ModelName(selection.document.resource.metadata.name),)
    return log.last(
        "served_names",
        [(Origin.BUILT_IN, own)]
        + [(each.origin, each.spec.model.served_names or None) for each in selection.specs],
    )


def _stages(selection: Selection, log: OriginLog) -> tuple[StagePlan, ...]:
    topology = selection.graph.topology
    successors = successors_of(
        [stage.name for stage in topology.stages],
        [(edge.producer, edge.consumer) for edge in topology.edges],
    )
    by_name = {stage.template.name: stage for stage in selection.stages}
    return tuple(
        resolve_stage(selection, by_name[name], log) for name in topological_order(successors)
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
