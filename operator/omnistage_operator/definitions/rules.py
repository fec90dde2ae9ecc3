"""What the API server checks beyond types and bounds: CEL rules, as data.

Rules belong to models and stand wherever the model does. They say what
`omnistage_common.pipeline.validation` says, as far as one object can show it and its cost can be
bounded. Left to the operator, which answers with the condition `GraphValid`: everything that needs
another object, and streams whose consumer waits for the end of their producer (`edge_checks`). The
API server refuses a rule whose cost it cannot bound: every list and string that a rule reads has a
maximum in the models.
"""

from collections.abc import Mapping
from typing import Any, Final

from omnistage_common.pipeline.edge_checks import WHOLE_KINDS
from omnistage_common.pipeline.fields import outside_fields
from omnistage_common.pipeline.resources import (
    Autoscaling,
    ChunkPolicy,
    EnvVar,
    InferencePipelineSpec,
    Model,
    Parallelism,
    ReceivedPort,
    RequestInput,
    StageOverride,
    StageSpec,
    TimeoutSettings,
    Toleration,
    Topology,
    TopologyEdge,
)
from omnistage_common.pipeline.topology_checks import REQUEST_INPUTS
from omnistage_operator.definitions.rule import Reason, Rule, literal
from omnistage_operator.definitions.topology_rules import TOPOLOGY_RULES

__all__ = ["IMMUTABLE", "RULES", "key_lengths"]

_KINDS_OF_INPUTS: Final = literal({str(name): kind.value for name, kind in REQUEST_INPUTS.items()})
_WHOLE: Final = literal(kind.value for kind in WHOLE_KINDS)
_BESIDE_A_REFERENCE: Final = tuple(
    name for name in outside_fields(StageOverride) if name not in {"name", "stageRef"}
)
"""Fields of an override that a Stage has of its own; empty ones count as set, as in a file."""

_INPUT_RULES: Final = (
    Rule(
        rule=f"self.name in {_KINDS_OF_INPUTS}",
        message=f"no request brings this; name one of {', '.join(sorted(REQUEST_INPUTS))}; "
        "what comes from another stage is an edge",
        field_path=".name",
    ),
    Rule(
        rule=f"!(self.name in {_KINDS_OF_INPUTS}) || self.kind == {_KINDS_OF_INPUTS}[self.name]",
        message="is not the kind of what the request brings under this name",
        expression=f"'the request\\'s ' + self.name + ' is ' + {_KINDS_OF_INPUTS}[self.name] + "
        f"'; write `kind: ' + {_KINDS_OF_INPUTS}[self.name] + '`'",
        field_path=".kind",
    ),
)

_CHUNK_RULES: Final = (
    Rule(
        rule="self.firstFrames.all(i, i <= self.frames)",
        message="goes beyond `frames`, the size of later chunks; write less, or raise `frames`",
        field_path=".firstFrames",
    ),
    Rule(
        rule="self.firstFrames.all(i, self.firstFrames.exists_one(j, j == i)) && "
        "self.firstFrames.isSorted()",
        message="does not rise; write the smallest size first, each once",
        field_path=".firstFrames",
    ),
)

_EDGE_RULES: Final = (
    Rule(
        rule="self.from != self.to",
        message="leads from a stage to itself; remove it",
        field_path=".to",
    ),
    Rule(
        rule="!has(self.chunk) || self.mode == 'Stream'",
        message="stands on a `Full` edge, which hands over everything at once; write "
        "`mode: Stream`, or remove `chunk`",
        reason=Reason.FORBIDDEN,
        field_path=".chunk",
    ),
)

_ENV_RULES: Final = (
    Rule(
        rule="has(self.value) || has(self.secretKey)",
        message="has no value; add `value` or `secretKey`",
        reason=Reason.REQUIRED,
    ),
    Rule(
        rule="!has(self.value) || !has(self.secretKey)",
        message="has both `value` and `secretKey`; keep one of them",
        reason=Reason.FORBIDDEN,
        field_path=".secretKey",
    ),
)

_TOLERATION_RULES: Final = (
    Rule(
        rule="self.operator != 'Exists' || !has(self.value) || self.value == ''",
        message="stands beside `operator: Exists`, which compares no value; remove it",
        reason=Reason.FORBIDDEN,
        field_path=".value",
    ),
    Rule(
        rule="has(self.key) && self.key != '' || self.operator == 'Exists'",
        message="without a `key` must be `Exists`; a toleration of all keys compares no value",
        field_path=".operator",
    ),
    Rule(
        rule="!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",
        message="needs `effect: NoExecute`; no other taint ends pods",
        reason=Reason.FORBIDDEN,
        field_path=".tolerationSeconds",
    ),
)

_OVERRIDE_RULES: Final = (
    Rule(
        rule="!has(self.replicas) || !has(self.autoscaling)",
        message="stands beside `autoscaling`; keep one of them",
        reason=Reason.FORBIDDEN,
        field_path=".replicas",
    ),
    Rule(
        rule="!has(self.stageRef) || !("
        + " || ".join(f"has(self.{name})" for name in _BESIDE_A_REFERENCE)
        + ")",
        message="stands beside settings that belong to the Stage it names; set these there: "
        + ", ".join(_BESIDE_A_REFERENCE),
        reason=Reason.FORBIDDEN,
        field_path=".stageRef",
    ),
)

_PIPELINE_RULES: Final = (
    Rule(
        rule="has(self.template) || has(self.topology)",
        message="has neither `template` nor `topology`; add `template: {name: ...}` with the name "
        "of a PipelineTemplate",
        reason=Reason.REQUIRED,
        field_path=".template",
    ),
    Rule(
        rule="!has(self.template) || !has(self.topology)",
        message="stands beside `template`; keep one of them",
        reason=Reason.FORBIDDEN,
        field_path=".topology",
    ),
    Rule(
        rule="!has(self.topology) || !has(self.stages) || "
        "self.stages.all(o, self.topology.stages.exists(s, s.name == o.name))",
        message="has entries for stages that the topology does not have",
        expression="'has an entry for the stage ' + self.stages"
        ".map(o, !self.topology.stages.exists(s, s.name == o.name), o.name)[0]"
        " + ', which the topology does not have'",
        field_path=".stages",
    ),
    Rule(
        rule="!has(self.topology) || self.topology.stages.all(s, "
        "has(s.defaults) && has(s.defaults.engine) || "
        "has(self.stages) && self.stages.exists(o, o.name == s.name && "
        "(has(o.runtime) || has(o.stageRef))))",
        message="has stages without an engine; set `defaults.engine`, or name a `runtime` in `stages`",
        reason=Reason.REQUIRED,
        field_path=".topology",
    ),
)

_RECEIVED_RULES: Final = (
    Rule(
        rule="self.mode == 'Stream' || self.contextFrames == 0",
        message="stands on a `Full` input, which arrives as a whole; remove it, or write `mode: Stream`",
        field_path=".contextFrames",
    ),
    Rule(
        rule=f"self.mode != 'Stream' || !(self.kind in {_WHOLE})",
        message="is `Stream`, but this kind cannot be handed over in pieces; write `mode: Full`",
        field_path=".mode",
    ),
)

_STAGE_RULES: Final = (
    Rule(
        rule="has(self.engine) || has(self.runtime)",
        message="has no engine; set `engine`, or name a `runtime`",
        reason=Reason.REQUIRED,
        field_path=".engine",
    ),
    Rule(
        rule="!has(self.consumes) || !has(self.receives) || "
        "self.receives.all(r, self.consumes.all(c, c.name != r.name))",
        message="has a name that stands under `consumes` too; give one of them another name",
        field_path=".receives",
    ),
)

RULES: Final[Mapping[type[Model], tuple[Rule, ...]]] = {
    Autoscaling: (
        Rule(
            rule="self.minReplicas <= self.maxReplicas",
            message="is more than `maxReplicas`; make it at most as many",
            field_path=".minReplicas",
        ),
    ),
    ChunkPolicy: _CHUNK_RULES,
    EnvVar: _ENV_RULES,
    InferencePipelineSpec: _PIPELINE_RULES,
    Parallelism: (
        Rule(
            rule="self.tensor * self.pipeline * self.data % self.nodes == 0",
            message="does not divide the devices evenly; make `tensor` times `pipeline` times `data` a "
            "multiple of it",
            field_path=".nodes",
        ),
    ),
    ReceivedPort: _RECEIVED_RULES,
    RequestInput: _INPUT_RULES,
    StageOverride: _OVERRIDE_RULES,
    StageSpec: _STAGE_RULES,
    TimeoutSettings: (
        Rule(
            rule="!has(self.request) || self.request.matches('[1-9]')",
            message="is no time at all, and no request could be served; write e.g. `120s`",
            field_path=".request",
        ),
    ),
    Toleration: _TOLERATION_RULES,
    Topology: TOPOLOGY_RULES,
    TopologyEdge: _EDGE_RULES,
}
"""Model -> its rules, wherever it stands."""

IMMUTABLE: Final[Mapping[str, Rule]] = {
    "PipelineTemplate": Rule(
        rule="self == oldSelf",
        message="does not change; make a PipelineTemplate of another name, and name it in the "
        "pipelines that should use it",
        reason=Reason.FORBIDDEN,
    ),
}
"""Kind -> why its spec stays as it was made."""


def key_lengths(bounds: Mapping[str, Any]) -> Rule:
    """The rule for keys of a map, which a structural schema cannot bound.

    Args:
        bounds: `minLength` and `maxLength` of a key.
    """
    least, most = bounds.get("minLength", 0), bounds["maxLength"]
    return Rule(
        rule=f"self.all(key, size(key) >= {least} && size(key) <= {most})",
        message=f"has a key that is not {least} to {most} characters long",
    )
