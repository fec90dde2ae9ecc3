"""Which stages a request visits.

A pure function of the plan, of what the request brings and of what the client wants back.

A stage runs when something that was asked for depends on it and when what it needs is there. So a
request without audio skips the recogniser, and one that wants text alone skips the speaker. Routes
depend on few values, so they are worked out once per combination.
"""

from collections.abc import Iterable

from msgspec import Struct

from omnistage_common.errors import UnsupportedModality
from omnistage_common.ids import OutputName, StageName
from omnistage_common.links.frames import Delivery
from omnistage_common.payloads import PayloadKind
from omnistage_common.pipeline.plan import (
    ChunkPlan,
    EdgeMode,
    EdgePlan,
    Modality,
    OutputPlan,
    PipelinePlan,
    StagePlan,
)

__all__ = ["Route", "RouteStage", "Routes", "Stream", "find_route"]


class Stream(Struct, frozen=True, kw_only=True):
    """What one stop hands another chunk by chunk: all `Stream` edges between them of one policy."""

    producer: StageName
    consumer: StageName
    outputs: tuple[OutputName, ...]
    chunk: ChunkPlan | None


class Streams(Struct, frozen=True, kw_only=True):
    """What goes past the gateway at one stop."""

    arriving: tuple[Stream, ...] = ()
    """What it fetches from other stops while they run."""
    leaving: tuple[Stream, ...] = ()
    """What other stops fetch from it."""
    withheld: tuple[OutputName, ...] = ()
    """Its outputs that only streams carry."""


class RouteStage(Struct, frozen=True, kw_only=True):
    """One stop of a route, and what a request must know of it, worked out once."""

    name: StageName
    request_inputs: tuple[OutputName, ...]
    """What it takes from the request."""
    edges_in: tuple[EdgePlan, ...]
    """What it takes from other stops when they have ended."""
    edges_out: tuple[EdgePlan, ...]
    streams: Streams
    outputs: tuple[OutputPlan, ...]
    """What the client gets of it."""
    producers: tuple[StageName, ...]
    """Stops that must have ended before it starts, each once."""
    consumers: tuple[StageName, ...]
    """Stops that start when it has ended, each once."""
    feeds: frozenset[OutputName]
    """Outputs that are kept for those."""
    owes: frozenset[OutputName]
    """Outputs without which it has failed: all that come by here and that somebody must have, but
    for text, which may be empty."""
    writes_text: bool
    """Whether the answer's text is its work."""
    makes_frames: bool
    """Whether what it makes is counted in codec frames."""

    def delivery(self, *, stream: bool) -> Delivery:
        """When its outputs are wanted."""
        return Delivery.DELTAS if stream and self.outputs else Delivery.FINAL


class Route(Struct, frozen=True, kw_only=True):
    """The stops of a request; producers stand before their consumers."""

    stages: tuple[RouteStage, ...]


def find_route(
    plan: PipelinePlan, brings: frozenset[OutputName], wants: frozenset[Modality]
) -> Route:
    """The route of a request.

    Args:
        plan: The pipeline.
        brings: Names of the inputs that the request has, e.g. `conversation`, `audio`.
        wants: What the client wants back.

    Raises:
        UnsupportedModality: The pipeline cannot take or make one of them.
    """
    wanted = tuple(_wanted_outputs(plan, wants))
    runnable = _runnable(plan, brings)
    for output in wanted:
        if output.stage not in runnable:
            raise UnsupportedModality(
                f"{plan.name} cannot make {_named(output)} from"
                f" {' and '.join(sorted(brings)) or 'nothing'}",
                field="messages",
            )
    needed = _needed(plan, {output.stage for output in wanted}, runnable)
    _refuse_unused(plan, brings, needed)
    return Route(
        stages=tuple(
            _stop(plan, stage, brings, needed, wants)
            for stage in plan.stages
            if stage.name in needed
        )
    )


def _wanted_outputs(plan: PipelinePlan, wants: Iterable[Modality]) -> Iterable[OutputPlan]:
    for modality in sorted(wants, key=lambda wanted: wanted.value):
        made = [output for output in plan.outputs if output.modality is modality]
        if not made:
            can = sorted(
                output.modality.value for output in plan.outputs if output.modality is not None
            )
            raise UnsupportedModality(
                f"{plan.name} does not make {modality.value}; it makes: {', '.join(can)}",
                field="modalities",
            )
        yield from made


def _runnable(plan: PipelinePlan, brings: frozenset[OutputName]) -> set[StageName]:
    """Stages whose needs can be met: every required input, and something at all."""
    runnable: set[StageName] = set()
    for stage in plan.stages:
        edges = [edge for edge in plan.edges if edge.consumer == stage.name]
        met = [item.name in brings for item in stage.consumes]
        met += [edge.producer in runnable for edge in edges]
        required = [item.name in brings or item.optional for item in stage.consumes]
        required += [edge.producer in runnable or edge.optional for edge in edges]
        if any(met) and all(required):
            runnable.add(stage.name)
    return runnable


def _needed(plan: PipelinePlan, wanted: set[StageName], runnable: set[StageName]) -> set[StageName]:
    needed = set(wanted)
    for stage in reversed(plan.stages):
        if stage.name in needed:
            needed.update(
                edge.producer
                for edge in plan.edges
                if edge.consumer == stage.name and edge.producer in runnable
            )
    return needed


def _refuse_unused(
    plan: PipelinePlan, brings: frozenset[OutputName], needed: set[StageName]
) -> None:
    used = {item.name for stage in plan.stages if stage.name in needed for item in stage.consumes}
    unused = brings - used
    if unused:
        raise UnsupportedModality(
            f"{plan.name} does not take {' and '.join(sorted(unused))} input", field="messages"
        )


def _stop(
    plan: PipelinePlan,
    stage: StagePlan,
    brings: frozenset[OutputName],
    needed: set[StageName],
    wants: frozenset[Modality],
) -> RouteStage:
    edges = [edge for edge in plan.edges if {edge.producer, edge.consumer} <= needed]
    full = [edge for edge in edges if edge.mode is EdgeMode.FULL]
    streamed = [edge for edge in edges if edge.mode is EdgeMode.STREAM]
    edges_in = tuple(edge for edge in full if edge.consumer == stage.name)
    edges_out = tuple(edge for edge in full if edge.producer == stage.name)
    outputs = tuple(
        output
        for output in plan.outputs
        if output.stage == stage.name and (output.modality is None or output.modality in wants)
    )
    kept = {edge.output for edge in edges_out} | {output.output for output in outputs}
    owed = {edge.output: edge.kind for edge in edges_out if not edge.optional}
    owed |= {output.output: output.kind for output in outputs}
    made = [edge for edge in edges if edge.producer == stage.name]
    return RouteStage(
        name=stage.name,
        request_inputs=tuple(item.name for item in stage.consumes if item.name in brings),
        edges_in=edges_in,
        edges_out=edges_out,
        streams=Streams(
            arriving=_streams([edge for edge in streamed if edge.consumer == stage.name]),
            leaving=_streams([edge for edge in streamed if edge.producer == stage.name]),
            withheld=tuple(item.name for item in stage.produces if item.name not in kept),
        ),
        outputs=outputs,
        producers=tuple(dict.fromkeys(edge.producer for edge in edges_in)),
        consumers=tuple(dict.fromkeys(edge.consumer for edge in edges_out)),
        feeds=frozenset(edge.output for edge in edges_out),
        owes=frozenset(name for name, kind in owed.items() if kind is not PayloadKind.TEXT),
        writes_text=any(output.modality is Modality.TEXT for output in outputs),
        makes_frames=any(edge.kind is PayloadKind.CODEC_FRAMES for edge in made),
    )


def _streams(edges: Iterable[EdgePlan]) -> tuple[Stream, ...]:
    outputs: dict[tuple[StageName, StageName, ChunkPlan | None], list[OutputName]] = {}
    for edge in edges:
        outputs.setdefault((edge.producer, edge.consumer, edge.chunk), []).append(edge.output)
    return tuple(
        Stream(producer=producer, consumer=consumer, outputs=tuple(names), chunk=chunk)
        for (producer, consumer, chunk), names in outputs.items()
    )


def _named(output: OutputPlan) -> str:
    return output.modality.value if output.modality is not None else output.output


class Routes:
    """Routes of one pipeline, each worked out once."""

    def __init__(self, plan: PipelinePlan) -> None:
        self._plan = plan
        self._known: dict[tuple[frozenset[OutputName], frozenset[Modality]], Route] = {}

    def find(self, brings: frozenset[OutputName], wants: frozenset[Modality]) -> Route:
        """See `find_route`."""
        key = (brings, wants)
        route = self._known.get(key)
        if route is None:
            route = self._known[key] = find_route(self._plan, brings, wants)
        return route
