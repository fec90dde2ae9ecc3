"""Checks of what pipelines, stages and runtimes set, beyond what one field alone can tell."""

from collections.abc import Iterator, Sequence

from pydantic.alias_generators import to_camel

from omnistage_common.pipeline.graph import duplicates
from omnistage_common.pipeline.loading import Document
from omnistage_common.pipeline.plan import EdgeMode
from omnistage_common.pipeline.problems import Place, Problem, shown
from omnistage_common.pipeline.quantities import seconds_of
from omnistage_common.pipeline.resources import (
    EnvVar,
    Parallelism,
    Port,
    ReceivedPort,
    RequestInput,
    Stage,
    StageOverride,
    StageSettings,
    StageSpec,
    StageTemplate,
)
from omnistage_common.pipeline.selecting import Selection, StageSelection, Written, WrittenSpec

__all__ = ["env_problems", "settings_problems", "stage_settings_problems"]


def settings_problems(selection: Selection) -> tuple[Problem, ...]:
    """Everything wrong with what one pipeline sets."""
    found: list[Problem] = []
    for spec in selection.specs:
        found += _spec(spec)
    for stage in selection.stages:
        found += _engine(stage)
        found += _shared(selection, stage)
        for written in stage.written:
            if isinstance(written.settings, StageOverride):
                found += stage_settings_problems(written.settings, written.place)
    return tuple(found)


def stage_settings_problems(settings: StageSettings, place: Place) -> Iterator[Problem]:
    """Everything wrong with the settings of one stage, wherever they stand."""
    yield from env_problems(settings.env, place.at("env"))
    if settings.parallelism is not None:
        yield from _uneven(settings.parallelism, place.at("parallelism", "nodes"))
    scaling = settings.autoscaling
    if scaling is None:
        return
    # A cluster fills in the `replicas` of every Stage, and an autoscaler writes there.
    if settings.replicas is not None and not isinstance(settings, StageSpec):
        yield place.at("replicas").problem(
            f"is {settings.replicas} beside `autoscaling`", "keep one of them"
        )
    if scaling.min_replicas > scaling.max_replicas:
        yield place.at("autoscaling", "minReplicas").problem(
            f"is {scaling.min_replicas}, which is more than maxReplicas {scaling.max_replicas}",
            "make it at most as many",
        )


def _uneven(parallelism: Parallelism, place: Place) -> Iterator[Problem]:
    devices = parallelism.tensor * parallelism.pipeline * parallelism.data
    if devices % parallelism.nodes:
        yield place.problem(
            f"is {parallelism.nodes}, over which {devices} devices cannot be spread evenly",
            "make `tensor` times `pipeline` times `data` a multiple of it",
        )


def env_problems(variables: Sequence[EnvVar], place: Place) -> Iterator[Problem]:
    """Everything wrong with a list of environment variables."""
    for index, name in duplicates(variable.name for variable in variables):
        yield place.at(index, "name").problem(
            f"is {shown(name)} like an earlier variable", "keep one of them"
        )
    for index, variable in enumerate(variables):
        if (variable.value is None) == (variable.secret_key is None):
            both = variable.value is not None
            yield place.at(index).problem(
                "has both `value` and `secretKey`" if both else "has no value",
                "keep one of them" if both else "add `value` or `secretKey`",
            )


def _spec(written: WrittenSpec) -> Iterator[Problem]:
    for index, name in duplicates(stage.name for stage in written.spec.stages):
        yield written.place.at("stages", index, "name").problem(
            f"is {shown(name)} like an earlier entry", "write one entry for each stage"
        )
    for index, name in duplicates(written.spec.model.served_names):
        yield written.place.at("model", "servedNames", index).problem(
            f"is {shown(name)} like an earlier name", "remove it"
        )
    if seconds_of(written.spec.timeouts.request) <= 0:
        yield written.place.at("timeouts", "request").problem(
            f"is {shown(written.spec.timeouts.request)}; no request could be served",
            "write a longer time, e.g. `120s`",
        )


def _engine(stage: StageSelection) -> Iterator[Problem]:
    """A stage has one engine, and its runtime runs that one."""
    if stage.shared is not None:
        wanted, wanted_by = stage.shared.resource.spec.engine, f"Stage {_name(stage.shared)}"
    else:
        wanted, wanted_by = stage.template.defaults.engine, f"stage {stage.template.name}"
    if stage.runtime is None:
        named = any(written.settings.runtime is not None for written in stage.written)
        if wanted is None and not named:
            yield _own_place(stage).problem(
                "has no engine", "name a `runtime`, or set `defaults.engine` in the topology"
            )
        return
    engine = stage.runtime.resource.spec.engine
    if wanted not in {None, engine}:
        yield _runtime_place(stage.written).problem(
            f"names a runtime for {shown(engine)}, but {wanted_by} runs on {shown(wanted)}",
            f"name a StageRuntime whose engine is `{wanted}`",
        )


def _own_place(stage: StageSelection) -> Place:
    return stage.written[0].place if stage.written else stage.place


def _runtime_place(layers: Sequence[Written]) -> Place:
    naming = [written for written in layers if written.settings.runtime is not None]
    return naming[-1].place.at("runtime", "name")


def _shared(selection: Selection, stage: StageSelection) -> Iterator[Problem]:
    """What `stageRef` names fits in, and stands for itself."""
    if stage.shared is None:
        return
    for written in stage.written:
        settings = written.settings
        if not isinstance(settings, StageOverride) or settings.stage_ref is None:
            continue
        where = written.place.at("stageRef", "name")
        yield from _fits(stage.template, stage.shared, where)
        yield from _receives(selection, stage.template, stage.shared, where)
        for key in sorted(settings.model_fields_set - {"name", "stage_ref"}):
            yield written.place.at(to_camel(key)).problem(
                "is set beside `stageRef`", f"set it in the Stage {_name(stage.shared)}"
            )


def _fits(template: StageTemplate, shared: Document[Stage], where: Place) -> Iterator[Problem]:
    spec = shared.resource.spec
    name = _name(shared)
    if spec.execution is not template.execution:
        yield where.problem(
            f"names a Stage that is {spec.execution.value}, but {template.name} is "
            f"{template.execution.value}",
            "name another Stage",
        )
    for key, has, wants in (
        ("consumes", _listed(spec.consumes), _listed(template.consumes)),
        ("produces", _listed(spec.produces), _listed(template.produces)),
    ):
        if has != wants:
            yield where.problem(
                f"names a Stage that {key} {has}, but {template.name} {key} {wants}",
                f"make the Stage {name} and the topology agree",
            )


def _receives(
    selection: Selection, template: StageTemplate, shared: Document[Stage], where: Place
) -> Iterator[Problem]:
    """A Stage takes what the edges of a pipeline bring, as they bring it; it may take more."""
    topology = selection.graph.topology
    kinds = {
        (stage.name, port.name): port.kind for stage in topology.stages for port in stage.produces
    }
    taken = {each.name: each for each in shared.resource.spec.receives}
    for edge in topology.edges:
        kind = kinds.get((edge.producer, edge.output))
        if edge.consumer != template.name or kind is None:
            continue
        chunk = edge.chunk if selection.chunked else None
        brought = ReceivedPort(
            name=edge.output,
            kind=kind,
            mode=edge.mode if selection.chunked else EdgeMode.FULL,
            context_frames=chunk.context_frames if chunk is not None else 0,
        )
        if taken.get(edge.output) != brought:
            name, has = _name(shared), taken.get(edge.output)
            yield where.problem(
                f"names a Stage that receives {_received(has)}, but {template.name} receives"
                f" {_received(brought)}",
                f"write that under `receives` of the Stage {name}",
            )


def _received(port: ReceivedPort | None) -> str:
    if port is None:
        return "no such input"
    context = f", contextFrames {port.context_frames}" if port.context_frames else ""
    return f"{port.name} ({port.kind.value}, {port.mode.value}{context})"


def _listed(ports: Sequence[RequestInput] | Sequence[Port]) -> str:
    return ", ".join(sorted(f"{port.name} ({port.kind.value})" for port in ports)) or "nothing"


def _name(document: Document[Stage]) -> str:
    return document.resource.metadata.name
