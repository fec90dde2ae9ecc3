"""The CEL rules of a graph: what `topology_checks` and `edge_checks` find, as the API server can.

A rule sees only what lies below it, so that rules about edges and stages together stand on the
graph; their messages name the first edge, output or stage that is to
blame.
"""

from itertools import pairwise
from typing import Final

from omnistage_common.pipeline.edge_checks import FRAMED_KINDS, WHOLE_KINDS
from omnistage_common.pipeline.resources import Topology
from omnistage_common.pipeline.topology_checks import MODALITY_KINDS
from omnistage_operator.definitions.rule import Reason, Rule, literal

__all__ = ["TOPOLOGY_RULES"]

_WHOLE: Final = literal(kind.value for kind in WHOLE_KINDS)
_FRAMED: Final = literal(kind.value for kind in FRAMED_KINDS)
_KIND_OF: Final = literal({modality.value: kind.value for modality, kind in MODALITY_KINDS.items()})
_NEEDED: Final = ", ".join(
    f"`{kind.value}` for {modality.value}" for modality, kind in MODALITY_KINDS.items()
)
_MOST_STAGES: Final = int(Topology.model_json_schema()["properties"]["stages"]["maxItems"])


def _edges(holds: str, wrong: str, remedy: str) -> Rule:
    """A rule for each edge `e`, told with the first edge that breaks it.

    Args:
        holds: CEL over `e`.
        wrong: What such an edge does.
        remedy: What to do instead.
    """
    return Rule(
        rule=f"!has(self.edges) || self.edges.all(e, {holds})",
        message=f"has an edge that {wrong}; {remedy}",
        expression=f"'the edge ' + self.edges.map(e, !({holds}), "
        f"e.from + ' -> ' + e.to + ' (' + e.output + ')')[0] + ' {wrong}; {remedy}'",
        field_path=".edges",
    )


def _outputs(holds: str, wrong: str, remedy: str) -> Rule:
    """A rule for each output `o`, told with the first output that breaks it."""
    return Rule(
        rule=f"self.outputs.all(o, {holds})",
        message=f"has an output that {wrong}; {remedy}",
        expression=f"'the output ' + self.outputs.map(o, !({holds}), "
        f"o.stage + ' (' + o.output + ')')[0] + ' {wrong}; {remedy}'",
        field_path=".outputs",
    )


def _stages(holds: str, wrong: str, remedy: str) -> Rule:
    """A rule for each stage `s`, told with the first stage that breaks it."""
    return Rule(
        rule=f"self.stages.all(s, {holds})",
        message=f"has a stage that {wrong}; {remedy}",
        expression=f"'the stage ' + self.stages.map(s, !({holds}), s.name)[0]"
        f" + ' {wrong}; {remedy}'",
        field_path=".stages",
    )


def _carried(holds: str) -> str:
    """CEL that is true when `holds` is, of the output `p` that the edge `e` carries."""
    return (
        "self.stages.all(s, s.name != e.from || "
        f"s.produces.all(p, p.name != e.output || ({holds})))"
    )


def _offered(holds: str) -> str:
    """CEL that is true when `holds` is, of the port `p` that the output `o` offers."""
    return (
        "self.stages.all(s, s.name != o.stage || "
        f"s.produces.all(p, p.name != o.output || ({holds})))"
    )


def _peeled(macro: str, innermost: str) -> str:
    """CEL over `rest`: the stages that lie on a cycle, or behind one.

    Stages that nothing leads to are taken away, as often as there can be stages (Kahn's algorithm).
    CEL has no names for interim results; a macro over a list of one item is one.

    Args:
        macro: `all` for a condition, `map` for a value, which comes out in as many lists.
        innermost: CEL over `rest`.
    """
    names = [f"r{number}" for number in range(_MOST_STAGES)]
    cel = f"[self.stages.map(s, s.name)].{macro}(r0, "
    for name, after in pairwise([*names, "rest"]):
        left = f"{name}.filter(n, self.edges.exists(e, e.to == n && e.from in {name}))"
        cel += f"[{left}].{macro}({after}, "
    unpacked = "[0]" if macro == "map" else ""
    return cel + innermost + f"){unpacked}" * (_MOST_STAGES + 1)


_CYCLE: Final = Rule(
    rule=f"!has(self.edges) || {_peeled('all', 'size(rest) == 0')}",
    message="lead in a circle; remove an edge of it",
    expression=_peeled(
        "map",
        "'lead in a circle; remove an edge of it. The stage ' + "
        "self.stages.map(s, s.name in rest, s.name)[0] + ' lies on it, or behind it'",
    ),
    field_path=".edges",
)

_EDGE_RULES: Final = (
    _edges(
        "self.stages.exists(s, s.name == e.from)",
        "comes from a stage that does not exist",
        "name one that stands under `stages`",
    ),
    _edges(
        "self.stages.exists(s, s.name == e.to)",
        "leads to a stage that does not exist",
        "name one that stands under `stages`",
    ),
    _edges(
        "self.stages.all(s, s.name != e.from || s.produces.exists(p, p.name == e.output))",
        "carries what its stage does not make",
        "name an output that stands under `produces` of the stage",
    ),
    _edges(
        _carried("!has(e.kind) || p.kind == e.kind"),
        "expects another kind than its stage makes",
        "write the kind that stands under `produces`, or leave `kind` out",
    ),
    _edges(
        f"e.mode != 'Stream' || {_carried(f'!(p.kind in {_WHOLE})')}",
        "is `Stream`, but what it carries cannot be handed over in pieces",
        "write `mode: Full`",
    ),
    _edges(
        f"!has(e.chunk) || {_carried(f'p.kind in {_FRAMED}')}",
        "has a `chunk`, but what it carries has no frames to gather",
        f"remove `chunk`; these have frames: {', '.join(sorted(k.value for k in FRAMED_KINDS))}",
    ),
    _edges(
        "self.edges.all(f, e.to != f.to || e.output != f.output || e.from == f.from)",
        "brings a stage what another one brings it under the same name",
        "give the output of one producer another name",
    ),
    _edges(
        "self.stages.all(s, s.name != e.to || !has(s.consumes) || "
        "s.consumes.all(c, c.name != e.output))",
        "brings a stage what it takes from the request under the same name",
        "give the output another name",
    ),
    _CYCLE,
)

_OUTPUT_RULES: Final = (
    _outputs(
        "self.stages.exists(s, s.name == o.stage)",
        "names a stage that does not exist",
        "name one that stands under `stages`",
    ),
    _outputs(
        "self.stages.all(s, s.name != o.stage || s.produces.exists(p, p.name == o.output))",
        "names what its stage does not make",
        "name an output that stands under `produces` of the stage",
    ),
    _outputs(
        f"!has(o.modality) || {_offered(f'p.kind == {_KIND_OF}[o.modality]')}",
        "has a modality that is not made of what its stage makes",
        f"needed are {_NEEDED}",
    ),
    _outputs(
        "has(o.modality) || " + _offered("p.kind == 'text'"),
        "has no modality; only a transcript, which is text, has none",
        f"add one of {', '.join(each.value for each in MODALITY_KINDS)}",
    ),
    _outputs(
        "!has(o.modality) || "
        "self.outputs.exists_one(q, has(q.modality) && q.modality == o.modality)",
        "has the modality of another one, and a client could not tell them apart",
        "keep one output for each modality",
    ),
    Rule(
        rule="self.outputs.exists(o, has(o.modality))",
        message="offer nothing that a client can ask for; give one of them a `modality`",
        reason=Reason.REQUIRED,
        field_path=".outputs",
    ),
)

_STAGE_RULES: Final = (
    _stages(
        "has(s.consumes) && size(s.consumes) > 0 || "
        "has(self.edges) && self.edges.exists(e, e.to == s.name && !e.optional)",
        "has nothing that surely starts it",
        "add `consumes`, or an edge that is not optional",
    ),
    _stages(
        "self.outputs.exists(o, o.stage == s.name) || "
        "has(self.edges) && self.edges.exists(e, e.from == s.name)",
        "works for nobody",
        "add an edge or an output, or remove the stage",
    ),
)

TOPOLOGY_RULES: Final = (*_EDGE_RULES, *_OUTPUT_RULES, *_STAGE_RULES)
"""What must hold of a graph."""
