"""Puts together what one pipeline is made of: its template, runtimes, stages and overrides.

References are followed here and nowhere else; a name that leads nowhere is a problem with the
nearest name as its remedy. Nothing is merged yet: `resolver` does that.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from omnistage_common.ids import PipelineName
from omnistage_common.pipeline.loading import Document, Resources, ResourceT
from omnistage_common.pipeline.overrides import CommandLine
from omnistage_common.pipeline.plan import Origin
from omnistage_common.pipeline.problems import (
    Place,
    Problem,
    ResourceProblems,
    closest,
    shown,
)
from omnistage_common.pipeline.resources import (
    InferencePipeline,
    InferencePipelineSpec,
    Stage,
    StageOverride,
    StageRuntime,
    StageSettings,
    StageTemplate,
    Topology,
)

__all__ = [
    "Graph",
    "Selection",
    "StageSelection",
    "Written",
    "WrittenSpec",
    "choose_pipeline",
    "select",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """Settings of one stage from one layer."""

    origin: Origin
    settings: StageSettings
    place: Place


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenSpec:
    """A pipeline's spec from one layer."""

    origin: Origin
    spec: InferencePipelineSpec
    place: Place


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """A topology and where it was written."""

    origin: Origin
    topology: Topology
    place: Place


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSelection:
    """What one stage is made of."""

    template: StageTemplate
    place: Place
    """Of the template's stage."""
    runtime: Document[StageRuntime] | None
    shared: Document[Stage] | None
    """What `stageRef` names."""
    written: tuple[Written, ...]
    """The layers above the runtime, lowest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """What one pipeline is made of."""

    document: Document[InferencePipeline]
    graph: Graph
    stages: tuple[StageSelection, ...]
    specs: tuple[WrittenSpec, ...]
    """The pipeline's own spec, then the command line's."""
    command_line: CommandLine

    @property
    def chunked(self) -> bool:
        """Whether `Stream` edges stream; the topmost layer that says so decides."""
        said = [each.spec.streaming for each in self.specs if each.spec.streaming.model_fields_set]
        return said[-1].chunked if said else True


def choose_pipeline(resources: Resources, name: PipelineName | None) -> Document[InferencePipeline]:
    """The pipeline of that name, or the only one there is.

    Raises:
        ResourceProblems: There is no such pipeline, or no name to choose among several.
    """
    names = [each.resource.metadata.name for each in resources.pipelines]
    if name is None and len(names) == 1:
        return resources.pipelines[0]
    for document in resources.pipelines:
        if document.resource.metadata.name == name:
            return document
    if name is None and names:
        message, remedy = "there are several pipelines", f"name one of {', '.join(sorted(names))}"
    elif name is None:
        message, remedy = "there is no InferencePipeline", "add one"
    else:
        message = f"there is no InferencePipeline {shown(name)}"
        remedy = closest(name, names, what="pipelines")
    raise ResourceProblems(
        [Problem(file="", line=0, field="pipeline", message=message, remedy=remedy)]
    )


def select(
    resources: Resources, document: Document[InferencePipeline], command_line: CommandLine
) -> tuple[Selection | None, tuple[Problem, ...]]:
    """What a pipeline is made of, and every name in it that leads nowhere.

    None when there is no topology to go by.
    """
    specs = (
        WrittenSpec(
            origin=Origin.PIPELINE, spec=document.resource.spec, place=document.place.at("spec")
        ),
        WrittenSpec(origin=Origin.COMMAND_LINE, spec=command_line.spec, place=command_line.place),
    )
    finder = _Finder(resources=resources, namespace=document.resource.metadata.namespace)
    problems: list[Problem] = []
    graph = finder.graph(specs, problems)
    if graph is None:
        return None, tuple(problems)
    problems += _unknown_stages(graph, specs)
    stages = tuple(
        finder.stage(template, graph.place.at("stages", index), specs, problems)
        for index, template in enumerate(graph.topology.stages)
    )
    selection = Selection(
        document=document, graph=graph, stages=stages, specs=specs, command_line=command_line
    )
    return selection, tuple(problems)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Finder:
    """Follows references out of one pipeline."""

    resources: Resources
    namespace: str

    def graph(self, specs: Sequence[WrittenSpec], problems: list[Problem]) -> Graph | None:
        """The topology: inline, or of the template that the topmost layer names."""
        own = specs[0]
        named = next((each for each in reversed(specs) if each.spec.template is not None), None)
        if own.spec.topology is not None:
            if named is not None:
                problems.append(
                    named.place.at("template").problem(
                        "is given beside `topology`", "keep one of them"
                    )
                )
            place = own.place.at("topology")
            return Graph(origin=Origin.PIPELINE, topology=own.spec.topology, place=place)
        if named is None or named.spec.template is None:
            problems.append(
                own.place.problem(
                    "has neither `template` nor `topology`",
                    "add `template: {name: ...}` with the name of a PipelineTemplate",
                )
            )
            return None
        template = self._found(
            named.spec.template.name,
            self.resources.templates,
            named.place.at("template", "name"),
            problems,
            kind="PipelineTemplate",
        )
        if template is None:
            return None
        return Graph(
            origin=Origin.TEMPLATE,
            topology=template.resource.spec,
            place=template.place.at("spec"),
        )

    def stage(
        self,
        template: StageTemplate,
        place: Place,
        specs: Sequence[WrittenSpec],
        problems: list[Problem],
    ) -> StageSelection:
        """What one stage of the topology is made of."""
        overrides = list(_overrides_of(template, specs))
        shared = self._shared(overrides, problems)
        below = (
            [
                Written(
                    origin=Origin.PIPELINE,
                    settings=shared.resource.spec,
                    place=shared.place.at("spec"),
                )
            ]
            if shared is not None
            else []
        )
        written = (*below, *overrides)
        return StageSelection(
            template=template,
            place=place,
            runtime=self._runtime(written, problems),
            shared=shared,
            written=written,
        )

    def _shared(
        self, overrides: Sequence[Written], problems: list[Problem]
    ) -> Document[Stage] | None:
        for each in reversed(overrides):
            if isinstance(each.settings, StageOverride) and each.settings.stage_ref is not None:
                return self._found(
                    each.settings.stage_ref.name,
                    [
                        s
                        for s in self.resources.stages
                        if s.resource.metadata.namespace == self.namespace
                    ],
                    each.place.at("stageRef", "name"),
                    problems,
                    kind="Stage",
                )
        return None

    def _runtime(
        self, written: Sequence[Written], problems: list[Problem]
    ) -> Document[StageRuntime] | None:
        for each in reversed(written):
            if each.settings.runtime is not None:
                return self._found(
                    each.settings.runtime.name,
                    self.resources.runtimes,
                    each.place.at("runtime", "name"),
                    problems,
                    kind="StageRuntime",
                )
        return None

    def _found(
        self,
        name: str,
        documents: Iterable[Document[ResourceT]],
        place: Place,
        problems: list[Problem],
        *,
        kind: str,
    ) -> Document[ResourceT] | None:
        known = {each.resource.metadata.name: each for each in documents}
        if name not in known and (kind, name) not in self.resources.broken:
            problems.append(
                place.problem(
                    f"there is no {kind} {shown(name)}", closest(name, known, what=f"{kind}s")
                )
            )
        return known.get(name)


def _overrides_of(template: StageTemplate, specs: Sequence[WrittenSpec]) -> Iterable[Written]:
    for each in specs:
        for index, override in enumerate(each.spec.stages):
            if override.name == template.name:
                yield Written(
                    origin=each.origin, settings=override, place=each.place.at("stages", index)
                )


def _unknown_stages(graph: Graph, specs: Sequence[WrittenSpec]) -> Iterable[Problem]:
    known = [stage.name for stage in graph.topology.stages]
    for each in specs:
        for index, override in enumerate(each.spec.stages):
            if override.name not in known:
                yield each.place.at("stages", index).problem(
                    f"the topology has no stage {shown(override.name)}",
                    closest(override.name, known, what="stages"),
                )
