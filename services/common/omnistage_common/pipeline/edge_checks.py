"""Checks of edges: where they lead, what they carry, and whether streams can flow.

A generator of problems for each way in which an edge can be wrong, over one topology.
"""

import itertools
from collections.abc import Iterator
from typing import Final

from omnistage_common.ids import OutputName, StageName
from omnistage_common.payloads import PayloadKind
from omnistage_common.pipeline.graph import duplicates
from omnistage_common.pipeline.plan import EdgeMode
from omnistage_common.pipeline.problems import Place, Problem, closest, shown
from omnistage_common.pipeline.resources import ChunkPolicy, StageTemplate, Topology, TopologyEdge

__all__ = ["FRAMED_KINDS", "WHOLE_KINDS", "edge_problems", "no_output"]

WHOLE_KINDS: Final = frozenset(
    {PayloadKind.CONVERSATION, PayloadKind.IMAGE, PayloadKind.KV_CACHE, PayloadKind.LATENTS}
)
"""Kinds that mean nothing in pieces, so no `Stream` edge can carry them."""

FRAMED_KINDS: Final = frozenset(
    {
        PayloadKind.CODEC_FRAMES,
        PayloadKind.EMBEDDINGS,
        PayloadKind.HIDDEN_STATES,
        PayloadKind.TOKENS,
        PayloadKind.WAVEFORM,
    }
)
"""Kinds whose rows can be gathered into chunks."""


def edge_problems(topology: Topology, place: Place) -> Iterator[Problem]:
    """Everything wrong with the edges of a topology."""
    yield from _edges(topology, place)
    yield from _arrivals(topology, place)
    yield from _stalls(topology, place)


def no_output(name: str, producer: StageTemplate, where: Place) -> Problem:
    """The problem of a name that is none of a stage's outputs."""
    return where.problem(
        f"{producer.name} makes no output {shown(name)}",
        closest(
            name, [port.name for port in producer.produces], what=f"outputs of {producer.name}"
        ),
    )


def _edges(topology: Topology, place: Place) -> Iterator[Problem]:
    stages = {stage.name: stage for stage in topology.stages}
    for index, edge in enumerate(topology.edges):
        where = place.at("edges", index)
        for key, name in (("from", edge.producer), ("to", edge.consumer)):
            if name not in stages:
                yield where.at(key).problem(
                    f"there is no stage {shown(name)}", closest(name, stages, what="stages")
                )
        if edge.producer in stages:
            yield from _carried(edge, stages[edge.producer], where)
    pairs = [f"{edge.producer} {edge.consumer} {edge.output}" for edge in topology.edges]
    for index, _ in duplicates(pairs):
        yield place.at("edges", index).problem("is the same as an earlier edge", "remove it")


def _carried(edge: TopologyEdge, producer: StageTemplate, where: Place) -> Iterator[Problem]:
    """Problems with what an edge carries."""
    kinds = {port.name: port.kind for port in producer.produces}
    kind = kinds.get(edge.output)
    if kind is None:
        yield no_output(edge.output, producer, where.at("output"))
        return
    if edge.kind not in {None, kind}:
        yield where.at("kind").problem(
            f"is {shown(edge.kind.value if edge.kind else None)}, but {producer.name} makes "
            f"{shown(edge.output)} as {shown(kind.value)}",
            f"write `kind: {kind.value}`, or leave it out",
        )
    if edge.mode is EdgeMode.STREAM and kind in WHOLE_KINDS:
        yield where.at("mode").problem(
            f"is `Stream`, but {shown(kind.value)} cannot be handed over in pieces",
            "write `mode: Full`",
        )
    if edge.chunk is not None:
        yield from _chunked(edge, edge.chunk, kind, where.at("chunk"))


def _chunked(
    edge: TopologyEdge, chunk: ChunkPolicy, kind: PayloadKind, where: Place
) -> Iterator[Problem]:
    """Problems with how an edge gathers what it carries."""
    if edge.mode is EdgeMode.FULL:
        yield where.problem(
            "stands on a `Full` edge, which hands over everything at once",
            "write `mode: Stream`, or remove `chunk`",
        )
    if kind not in FRAMED_KINDS:
        kinds = ", ".join(sorted(each.value for each in FRAMED_KINDS))
        yield where.problem(
            f"stands on an edge of kind {shown(kind.value)}, which has no frames to gather",
            f"remove `chunk`; these have frames: {kinds}",
        )
    sizes = chunk.first_frames
    if any(larger <= smaller for smaller, larger in itertools.pairwise(sizes)):
        yield where.at("firstFrames").problem(
            f"is {list(sizes)}, which does not rise", "write the smallest size first, each once"
        )
    if max(sizes) > chunk.frames:
        yield where.at("firstFrames").problem(
            f"goes up to {max(sizes)}, more than a later chunk's {chunk.frames} frames",
            f"write at most {chunk.frames}, or raise `frames`",
        )


def _arrivals(topology: Topology, place: Place) -> Iterator[Problem]:
    """Two things must not arrive at a stage under one name."""
    arrived: dict[tuple[StageName, OutputName], str] = {
        (stage.name, taken.name): "the request"
        for stage in topology.stages
        for taken in stage.consumes
    }
    known = {stage.name for stage in topology.stages}
    for index, edge in enumerate(topology.edges):
        before = arrived.setdefault((edge.consumer, edge.output), edge.producer)
        if before != edge.producer and edge.producer in known:
            yield place.at("edges", index, "output").problem(
                f"{edge.consumer} already takes a {shown(edge.output)} from {before}",
                "give the producer's output another name",
            )


def _stalls(topology: Topology, place: Place) -> Iterator[Problem]:
    """Whoever takes a stream must not also wait for the end of the stage that makes it."""
    for index, edge in enumerate(topology.edges):
        if edge.mode is EdgeMode.STREAM:
            path = _waiting_path(topology, edge)
            if path:
                yield place.at("edges", index, "mode").problem(
                    f"is `Stream`, but {edge.consumer} starts only when {edge.producer} has ended, "
                    f"since it waits for a `Full` edge of {' -> '.join(path)}",
                    "make all of them `Stream`, or this one `Full`",
                )


def _waiting_path(topology: Topology, stream: TopologyEdge) -> tuple[StageName, ...]:
    """A way from a stream's producer to its consumer with a `Full` edge on it; empty: none."""
    seen: set[tuple[StageName, bool]] = set()
    pending: list[tuple[tuple[StageName, ...], bool]] = [((stream.producer,), False)]
    while pending:
        path, waits = pending.pop(0)
        if path[-1] == stream.consumer and waits:
            return path
        if (path[-1], waits) not in seen:
            seen.add((path[-1], waits))
            pending += [
                ((*path, edge.consumer), waits or edge.mode is EdgeMode.FULL)
                for edge in topology.edges
                if edge.producer == path[-1]
            ]
    return ()
