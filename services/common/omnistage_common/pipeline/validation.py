"""Everything wrong with resources, found without running anything.

`check` looks at all that a set of files holds, used or not; `selection_problems` at one pipeline and
what it is made of, `stage_problems` at its stages alone. Errors keep a pipeline from being resolved, warnings do not.
"""

from collections.abc import Iterator, Sequence

from omnistage_common.pipeline.loading import Document, Resources
from omnistage_common.pipeline.overrides import CommandLine, Override, command_line_of
from omnistage_common.pipeline.plan import Origin
from omnistage_common.pipeline.problems import Place, Problem, closest, shown
from omnistage_common.pipeline.resources import InferencePipeline, Resource
from omnistage_common.pipeline.selecting import Graph, Selection, select
from omnistage_common.pipeline.settings_checks import (
    env_problems,
    settings_problems,
    stage_settings_problems,
)
from omnistage_common.pipeline.topology_checks import topology_problems
from omnistage_common.pipeline.unsupported import unsupported_problems

__all__ = ["check", "selection_problems", "stage_problems"]


def check(resources: Resources, *, overrides: Sequence[Override] = ()) -> tuple[Problem, ...]:
    """Every problem of the resources, each once, ordered by file and line.

    Args:
        resources: What was loaded, with the problems found on the way.
        overrides: From a command line; they apply to every pipeline.
    """
    command_line, problems = command_line_of(overrides)
    found = [
        *resources.problems,
        *problems,
        *_same_names(resources),
        *_served_twice(resources),
        *_alone(resources),
    ]
    for document in resources.pipelines:
        found += _pipeline_problems(resources, document, command_line)
    return tuple(sorted(dict.fromkeys(found), key=lambda each: (each.file, each.line)))


def selection_problems(selection: Selection, *, in_cluster: bool = False) -> tuple[Problem, ...]:
    """Every problem of one pipeline whose references are good."""
    return (
        *topology_problems(selection.graph),
        *stage_problems(selection, in_cluster=in_cluster),
        *_nested_problems(selection),
    )


def stage_problems(selection: Selection, *, in_cluster: bool) -> tuple[Problem, ...]:
    """Every problem of the stages of a pipeline, apart from the graph that they form."""
    return (
        *_parts_problems(selection),
        *settings_problems(selection),
        *unsupported_problems(selection, in_cluster=in_cluster),
    )


def _pipeline_problems(
    resources: Resources, document: Document[InferencePipeline], command_line: CommandLine
) -> tuple[Problem, ...]:
    selection, problems = select(resources, document, command_line)
    return problems if selection is None else (*problems, *selection_problems(selection))


def _parts_problems(selection: Selection) -> Iterator[Problem]:
    """Problems within the runtimes and shared stages that a pipeline names."""
    for stage in selection.stages:
        defaults = stage.template.defaults
        yield from env_problems(defaults.env, stage.place.at("defaults", "env"))
        if stage.runtime is not None:
            place = stage.runtime.place.at("spec", "env")
            yield from env_problems(stage.runtime.resource.spec.env, place)
        if stage.shared is not None:
            place = stage.shared.place.at("spec")
            yield from stage_settings_problems(stage.shared.resource.spec, place)


def _nested_problems(selection: Selection) -> Iterator[Problem]:
    known = [stage.template.name for stage in selection.stages]
    for each in selection.command_line.nested:
        if each.stage not in known:
            path = ("stages", each.stage, "engineArgs", *each.path)
            yield Problem(
                file="",
                line=0,
                field=f"--set {'.'.join(path)}",
                message=f"the topology has no stage {shown(each.stage)}",
                remedy=closest(each.stage, known, what="stages"),
            )


def _same_names(resources: Resources) -> Iterator[Problem]:
    seen: dict[tuple[str, str, str], Place] = {}
    every: tuple[Document[Resource], ...] = (
        *resources.templates,
        *resources.runtimes,
        *resources.stages,
        *resources.pipelines,
    )
    for document in every:
        resource = document.resource
        namespace = getattr(resource.metadata, "namespace", "")
        identity = (resource.kind, namespace, resource.metadata.name)
        first = seen.setdefault(identity, document.place)
        if first.source is not document.source:
            where = f"{first.source.file}:{first.source.line_of(('metadata', 'name'))}"
            yield document.place.at("metadata", "name").problem(
                f"there is a {resource.kind} {shown(resource.metadata.name)} already, at {where}",
                "give one of them another name",
            )


def _served_twice(resources: Resources) -> Iterator[Problem]:
    """A model name leads to one pipeline."""
    owners: dict[str, str] = {}
    for document in resources.pipelines:
        name = document.resource.metadata.name
        model = document.resource.spec.model
        for index, served in enumerate(model.served_names or (name,)):
            owner = owners.setdefault(served, name)
            if owner != name:
                place = document.place.at("spec", "model", "servedNames")
                yield (place.at(index) if model.served_names else place).problem(
                    f"the model {shown(served)} is served by the pipeline {owner} already",
                    "serve each name by one pipeline",
                )


def _alone(resources: Resources) -> Iterator[Problem]:
    """Problems that each resource has by itself, whether a pipeline uses it or not."""
    for template in resources.templates:
        graph = Graph(
            origin=Origin.TEMPLATE,
            topology=template.resource.spec,
            place=template.place.at("spec"),
        )
        yield from topology_problems(graph)
        for index, stage in enumerate(template.resource.spec.stages):
            place = template.place.at("spec", "stages", index, "defaults", "env")
            yield from env_problems(stage.defaults.env, place)
    for runtime in resources.runtimes:
        yield from env_problems(runtime.resource.spec.env, runtime.place.at("spec", "env"))
    for shared in resources.stages:
        yield from stage_settings_problems(shared.resource.spec, shared.place.at("spec"))
