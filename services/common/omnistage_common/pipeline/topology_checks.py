"""Checks of a graph: names, kinds, cycles, stages that can never run or whose work nobody takes.

What edges carry, and how, is checked in `edge_checks`. Each check is a generator of problems over one
`Graph`; they do not depend on one another, so that a person sees everything at once.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from omnistage_common.ids import OutputName
from omnistage_common.payloads import PayloadKind
from omnistage_common.pipeline.edge_checks import edge_problems, no_output
from omnistage_common.pipeline.graph import duplicates, find_cycle, successors_of
from omnistage_common.pipeline.plan import Modality
from omnistage_common.pipeline.problems import Place, Problem, Severity, closest, shown
from omnistage_common.pipeline.resources import Topology
from omnistage_common.pipeline.selecting import Graph

__all__ = ["MODALITY_KINDS", "REQUEST_INPUTS", "topology_problems"]

REQUEST_INPUTS: Final = {
    OutputName("audio"): PayloadKind.WAVEFORM,
    OutputName("conversation"): PayloadKind.CONVERSATION,
    OutputName("image"): PayloadKind.IMAGE,
    OutputName("text"): PayloadKind.TEXT,
}
"""What a request can bring, and what kind it is."""

MODALITY_KINDS: Final = {
    Modality.TEXT: PayloadKind.TEXT,
    Modality.AUDIO: PayloadKind.WAVEFORM,
    Modality.IMAGE: PayloadKind.IMAGE,
    Modality.VIDEO: PayloadKind.VIDEO,
}
"""What a modality is made of."""


def topology_problems(graph: Graph) -> tuple[Problem, ...]:
    """Everything wrong with a graph, whoever uses it."""
    checks = (_stage_names, _ports, edge_problems, _outputs, _modalities, _idle_stages, _cycle)
    return tuple(problem for check in checks for problem in check(graph.topology, graph.place))


def _stage_names(topology: Topology, place: Place) -> Iterator[Problem]:
    for index, name in duplicates(stage.name for stage in topology.stages):
        yield place.at("stages", index, "name").problem(
            f"is {shown(name)} like an earlier stage", "give each stage a name of its own"
        )


def _ports(topology: Topology, place: Place) -> Iterator[Problem]:
    for number, stage in enumerate(topology.stages):
        where = place.at("stages", number)
        for key, ports in (("consumes", stage.consumes), ("produces", stage.produces)):
            for index, name in duplicates(port.name for port in ports):
                yield where.at(key, index, "name").problem(
                    f"is {shown(name)} like an earlier one", "give each a name of its own"
                )
        for index, taken in enumerate(stage.consumes):
            kind = REQUEST_INPUTS.get(taken.name)
            if kind is None:
                yield where.at("consumes", index, "name").problem(
                    f"no request brings {shown(taken.name)}",
                    closest(taken.name, REQUEST_INPUTS, what="inputs of a request")
                    + "; what comes from another stage is an edge",
                )
            elif kind is not taken.kind:
                yield where.at("consumes", index, "kind").problem(
                    f"is {shown(taken.kind.value)}, but the request's {shown(taken.name)} is "
                    f"{shown(kind.value)}",
                    f"write `kind: {kind.value}`",
                )


def _outputs(topology: Topology, place: Place) -> Iterator[Problem]:
    stages = {stage.name: stage for stage in topology.stages}
    for index, output in enumerate(topology.outputs):
        where = place.at("outputs", index)
        stage = stages.get(output.stage)
        if stage is None:
            yield where.at("stage").problem(
                f"there is no stage {shown(output.stage)}",
                closest(output.stage, stages, what="stages"),
            )
            continue
        kind = next((port.kind for port in stage.produces if port.name == output.output), None)
        if kind is None:
            yield no_output(output.output, stage, where.at("output"))
        elif output.modality is not None and kind is not MODALITY_KINDS[output.modality]:
            yield where.at("modality").problem(
                f"is {shown(output.modality.value)}, but {output.stage} makes "
                f"{shown(output.output)} as {shown(kind.value)}",
                f"name an output of kind `{MODALITY_KINDS[output.modality].value}`",
            )
        elif output.modality is None and kind is not PayloadKind.TEXT:
            yield where.at("modality").problem(
                f"is left out, but {shown(output.output)} is {shown(kind.value)}; only a "
                "transcript, which is text, has no modality",
                f"add one of {', '.join(each.value for each in Modality)}",
            )


def _modalities(topology: Topology, place: Place) -> Iterator[Problem]:
    """One output for each modality, and something that a client can ask for."""
    named = [output.modality.value if output.modality else "" for output in topology.outputs]
    if not any(named):
        yield place.at("outputs").problem(
            "offers nothing that a client can ask for", "give an output a `modality`"
        )
    counts = Counter(named)
    for index, name in duplicates(named):
        if name and counts[name] > 1:
            yield place.at("outputs", index, "modality").problem(
                f"is {shown(name)} like an earlier output",
                "a client could not tell them apart; keep one output for each modality",
            )


def _idle_stages(topology: Topology, place: Place) -> Iterator[Problem]:
    """Every stage needs something to start from and somebody who takes what it makes."""
    fed = {edge.consumer for edge in topology.edges}
    surely_fed = {edge.consumer for edge in topology.edges if not edge.optional}
    taken = {(edge.producer, edge.output) for edge in topology.edges}
    taken |= {(output.stage, output.output) for output in topology.outputs}
    for index, stage in enumerate(topology.stages):
        where = place.at("stages", index)
        if not stage.consumes and stage.name not in fed:
            yield where.problem(
                "can never run: it takes nothing from the request and no edge leads to it",
                "add `consumes` or an edge",
            )
        elif not stage.consumes and stage.name not in surely_fed:
            yield where.problem(
                "may be left with nothing to start from: every edge that leads to it is optional",
                "make one of them required, or add `consumes`",
            )
        if not any(producer == stage.name for producer, _ in taken):
            yield where.problem(
                "works for nobody: no edge and no output takes what it makes",
                "add an edge or an output, or remove the stage",
            )
            continue
        for number, port in enumerate(stage.produces):
            if (stage.name, port.name) not in taken:
                yield where.at("produces", number).problem(
                    "is taken by nobody", "add an edge or an output", severity=Severity.WARNING
                )


def _cycle(topology: Topology, place: Place) -> Iterator[Problem]:
    pairs = [(edge.producer, edge.consumer) for edge in topology.edges]
    cycle = find_cycle(successors_of([stage.name for stage in topology.stages], pairs))
    if cycle:
        index = pairs.index((cycle[-2], cycle[-1]))
        yield place.at("edges", index).problem(
            f"closes the cycle {' -> '.join(cycle)}", "remove an edge of it"
        )
