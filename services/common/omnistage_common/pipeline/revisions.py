"""Content hashes of what makes pods, so that only what changed rolls.

A revision is the hash of canonical JSON: keys sorted, whole floats written as integers (a cluster
returns `1.0` as `1`), fields left out that hold their default (so that a release which adds a field
changes no revision). How many replicas there are, and where a value came from, makes no difference.
"""

import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo

from omnistage_common.ids import Revision, StageName
from omnistage_common.pipeline.plan import PipelinePlan, StagePlan

__all__ = ["pipeline_revision", "stage_revision"]

_LENGTH: Final = 10
"""Hexadecimal digits: 40 bits, short enough for the name of a Deployment."""
_NOT_IN_STAGE: Final = frozenset({"name", "replicas", "revision"})
"""A stage is the same whatever it is called by those who use it."""
_NOT_IN_PIPELINE: Final = frozenset({"revision", "origins"})


def stage_revision(stage: StagePlan, pod: Mapping[str, object]) -> Revision:
    """The revision of a stage.

    Args:
        stage: Everything final; its name, `replicas` and `revision` do not count.
        pod: What else shapes its pods (image, resources, placement), as JSON values.
    """
    return _digest({"stage": _content(stage, _NOT_IN_STAGE), "pod": _canonical(pod)})


def pipeline_revision(plan: PipelinePlan, shared: Mapping[StageName, str]) -> Revision:
    """The revision of a pipeline whose stages have theirs.

    Args:
        plan: Everything final; its `revision` does not count.
        shared: Stages that a `Stage` serves which other pipelines may use too -> its name: that one
            can be of the same revision as the pipeline's own and yet runs in other pods.
    """
    content = _content(plan, _NOT_IN_PIPELINE)
    content["stages"] = [_content(stage, frozenset({"replicas"})) for stage in plan.stages]
    if shared:
        content["shared"] = _canonical(shared)
    return _digest(content)


def _digest(content: object) -> Revision:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return Revision(hashlib.sha256(text.encode("ascii")).hexdigest()[:_LENGTH])


def _content(struct: Struct, without: frozenset[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in _fields(type(struct)):
        value = getattr(struct, field.name)
        is_default = field.default is not NODEFAULT and value == field.default
        if field.name not in without and not is_default:
            found[field.name] = _canonical(value)
    return found


@cache
def _fields(kind: type[Struct]) -> tuple[FieldInfo, ...]:
    """Asked once for each kind: the answer is worked out anew every time, and slowly."""
    return msgspec.structs.fields(kind)


def _canonical(value: object) -> object:
    if isinstance(value, Struct):
        return _content(value, frozenset())
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
