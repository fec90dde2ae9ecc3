"""One stage's layers, merged to its part of the plan."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from omnistage_common.ids import EngineName, Revision
from omnistage_common.pipeline.origins import OriginLog
from omnistage_common.pipeline.overrides import NestedArg
from omnistage_common.pipeline.plan import (
    InputPlan,
    Limits,
    Origin,
    ParallelPlan,
    ProducePlan,
    ReceivePlan,
    StagePlan,
    TransportChoice,
)
from omnistage_common.pipeline.quantities import bytes_of, seconds_of
from omnistage_common.pipeline.resources import (
    EnvVar,
    StageDefaults,
    StageRuntimeSpec,
    StageSettings,
    StageSpec,
    TimeoutSettings,
)
from omnistage_common.pipeline.revisions import stage_revision
from omnistage_common.pipeline.selecting import Selection, StageSelection

__all__ = ["Surroundings", "final_variables", "resolve_stage", "surroundings_of_shared"]

_IN_STAGE_PLAN: Final = {"engine", "engine_args", "env"}
"""Fields of a runtime that the plan holds; the others shape pods."""
_USUAL_DRAIN: Final = seconds_of(TimeoutSettings().drain)


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What a stage gets from the graph around it; a shared stage says all of it by itself."""

    receives: tuple[ReceivePlan, ...]
    """Ordered by name."""
    drain: float
    """Seconds."""
    transport: TransportChoice


def surroundings_of_shared(spec: StageSpec) -> Surroundings:
    """What a stage that stands by itself says of its surroundings."""
    return Surroundings(
        receives=tuple(
            ReceivePlan(
                name=each.name,
                kind=each.kind,
                mode=each.mode,
                context_frames=each.context_frames,
            )
            for each in sorted(spec.receives, key=lambda each: each.name)
        ),
        drain=seconds_of(spec.drain),
        transport=spec.transfer.transport,
    )


def resolve_stage(
    selection: Selection, stage: StageSelection, log: OriginLog, around: Surroundings
) -> StagePlan:
    """The final values of one stage; its layers have no problems."""
    if stage.shared is not None:
        around = surroundings_of_shared(stage.shared.resource.spec)
    template = stage.template
    path = f"stages.{template.name}"
    for name in ("execution", "consumes", "produces", "receives"):
        log.note(f"{path}.{name}", selection.graph.origin)
    plan = StagePlan(
        name=template.name,
        execution=template.execution,
        engine=_engine(selection, stage, log),
        engine_args=_engine_args(selection, stage, log),
        model=_model(selection, stage, log),
        consumes=tuple(
            InputPlan(name=each.name, kind=each.kind, optional=each.optional)
            for each in template.consumes
        ),
        produces=tuple(ProducePlan(name=each.name, kind=each.kind) for each in template.produces),
        replicas=log.last(f"{path}.replicas", _replica_counts(selection, stage)),
        limits=_limits(selection, stage, log),
        env=_env(selection, stage, log),
        revision=Revision(""),
        receives=around.receives,
        parallelism=log.last(f"{path}.parallelism", _parallelism(stage)),
    )
    return replace(plan, revision=stage_revision(plan, _pod(selection, stage, around)))


def _defaults(stage: StageSelection) -> StageDefaults:
    """The template's defaults, which end where a shared stage stands for itself."""
    return StageDefaults() if stage.shared is not None else stage.template.defaults


def _runtime(stage: StageSelection) -> StageRuntimeSpec | None:
    return stage.runtime.resource.spec if stage.runtime is not None else None


def _engine(selection: Selection, stage: StageSelection, log: OriginLog) -> EngineName:
    runtime = _runtime(stage)
    shared = stage.shared.resource.spec.engine if stage.shared is not None else None
    return log.last(
        f"stages.{stage.template.name}.engine",
        [
            (selection.graph.origin, _defaults(stage).engine),
            (Origin.PIPELINE, shared),
            (Origin.RUNTIME, runtime.engine if runtime is not None else None),
        ],
    )


def _model(selection: Selection, stage: StageSelection, log: OriginLog) -> str:
    return log.last(
        f"stages.{stage.template.name}.model",
        [
            (Origin.BUILT_IN, ""),
            *((each.origin, each.spec.model.source) for each in selection.specs),
            (selection.graph.origin, _defaults(stage).model),
            *((each.origin, each.settings.model) for each in stage.written),
        ],
    )


def _replica_counts(
    selection: Selection, stage: StageSelection
) -> Iterator[tuple[Origin, int | None]]:
    defaults = _defaults(stage)
    given = "replicas" in defaults.model_fields_set
    yield (selection.graph.origin if given else Origin.BUILT_IN), defaults.replicas
    for each in stage.written:
        yield each.origin, _replicas(each.settings)


def _parallelism(stage: StageSelection) -> Iterator[tuple[Origin, ParallelPlan]]:
    yield Origin.BUILT_IN, ParallelPlan()
    for each in stage.written:
        if each.settings.parallelism is not None:
            yield each.origin, ParallelPlan(**each.settings.parallelism.model_dump())


def _replicas(settings: StageSettings) -> int | None:
    if settings.autoscaling is not None:
        return settings.autoscaling.min_replicas
    return settings.replicas


def _engine_args(selection: Selection, stage: StageSelection, log: OriginLog) -> dict[str, Any]:
    path = f"stages.{stage.template.name}.engine_args"
    runtime = _runtime(stage)
    args = log.merged(
        path,
        [
            (selection.graph.origin, _defaults(stage).engine_args),
            (Origin.RUNTIME, runtime.engine_args if runtime is not None else {}),
            *((each.origin, each.settings.engine_args) for each in stage.written),
        ],
    )
    nested = [each for each in selection.command_line.nested if each.stage == stage.template.name]
    return _with_nested(args, nested, path, log)


def _with_nested(
    args: Mapping[str, Any], nested: Sequence[NestedArg], path: str, log: OriginLog
) -> dict[str, Any]:
    """Arguments with values changed at any depth; what stands in the way is replaced."""
    found: dict[str, Any] = copy.deepcopy(dict(args))
    for each in nested:
        node = found
        for name in each.path[:-1]:
            if not isinstance(node.get(name), dict):
                node[name] = {}
            node = node[name]
        node[each.path[-1]] = each.value
        log.note(".".join((path, *each.path)), Origin.COMMAND_LINE)
    return found


def _env(selection: Selection, stage: StageSelection, log: OriginLog) -> dict[str, str]:
    path = f"stages.{stage.template.name}.env"
    found: dict[str, str] = {}
    for origin, variable in final_variables(selection, stage):
        if variable.value is not None:
            found[variable.name] = variable.value
            log.note(f"{path}.{variable.name}", origin)
    return found


def final_variables(
    selection: Selection, stage: StageSelection
) -> tuple[tuple[Origin, EnvVar], ...]:
    """The environment variables of a stage, merged by name, each with its layer."""
    runtime = _runtime(stage)
    layers = [
        (selection.graph.origin, _defaults(stage).env),
        (Origin.RUNTIME, runtime.env if runtime is not None else ()),
        *((each.origin, each.settings.env) for each in stage.written),
    ]
    found = {variable.name: (origin, variable) for origin, layer in layers for variable in layer}
    return tuple(found.values())


def _limits(selection: Selection, stage: StageSelection, log: OriginLog) -> Limits:
    path = f"stages.{stage.template.name}.limits"
    base = _defaults(stage).limits
    overrides = [(each.origin, each.settings.limits) for each in stage.written]

    def final(name: str) -> Any:
        given = name in base.model_fields_set
        return log.last(
            f"{path}.{name}",
            [
                (selection.graph.origin if given else Origin.BUILT_IN, getattr(base, name)),
                *((origin, getattr(limits, name, None)) for origin, limits in overrides),
            ],
        )

    return Limits(
        max_running=final("max_running"),
        max_queued=final("max_queued"),
        slab_bytes=bytes_of(final("slab_bytes")),
        device_slab_bytes=bytes_of(final("device_slab_bytes")),
    )


def _pod(selection: Selection, stage: StageSelection, around: Surroundings) -> dict[str, object]:
    """What shapes a stage's pods beside its plan, as JSON values without defaults."""
    pod: dict[str, object] = {}
    runtime = _runtime(stage)
    if runtime is not None:
        pod = runtime.model_dump(
            mode="json", by_alias=True, exclude=_IN_STAGE_PLAN, exclude_defaults=True
        )
    if around.drain != _USUAL_DRAIN:
        pod["drain"] = around.drain
    if around.transport is not TransportChoice.AUTO:
        pod["transport"] = around.transport.value
    secrets = {
        variable.name: variable.secret_key.model_dump(by_alias=True)
        for _, variable in final_variables(selection, stage)
        if variable.secret_key is not None
    }
    return {**pod, "secrets": secrets} if secrets else pod
