"""What a command line changes: `--set stages.thinker.replicas=2`.

Overrides become one more pipeline spec, the topmost layer, so that they pass the same models and
give the same messages as YAML. Arguments of an engine can be set at any depth
(`stages.thinker.engineArgs.outputs.text.text=hi`); these are kept apart, for they change a value of
the layers below instead of replacing it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from omnistage_common.pipeline.documents import read_value
from omnistage_common.pipeline.fields import field_at, is_text
from omnistage_common.pipeline.loading import parse_model
from omnistage_common.pipeline.problems import Place, Problem, ResourceProblems, Source
from omnistage_common.pipeline.resources import InferencePipelineSpec

__all__ = ["CommandLine", "NestedArg", "Override", "command_line_of", "parse_override"]

_STAGES: Final = "stages"
_ENGINE_ARGS: Final = "engineArgs"
_ENV: Final = "env"
_STAGE_FIELD_DEPTH: Final = 3
"""`stages`, a stage's name and a field of it."""
_FORBIDDEN: Final = frozenset({"topology"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    """One value from a command line."""

    path: tuple[str, ...]
    """Names from the pipeline's spec to the value; stages by name."""
    value: object
    """JSON value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NestedArg:
    """A value within an argument of an engine."""

    stage: str
    path: tuple[str, ...]
    """At least two names below `engineArgs`."""
    value: object


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandLine:
    """All overrides, as a layer."""

    spec: InferencePipelineSpec
    place: Place
    nested: tuple[NestedArg, ...]


def parse_override(text: str) -> Override:
    """Reads `path=value`; the value is YAML, except where a field is text.

    Raises:
        ResourceProblems: The text has no `=`, an empty name in its path, or a value that is no YAML.
    """
    name, separator, written = text.partition("=")
    path = tuple(name.strip().split("."))
    if not separator or not all(path):
        raise ResourceProblems(
            [_at_fault(text, "is not `path=value`", "e.g. `stages.thinker.replicas=2`")]
        )
    if _wants_text(path):
        return Override(path=path, value=written)
    value, problems = read_value(written, file="")
    if problems:
        raise ResourceProblems(
            [_at_fault(name, problem.message, "quote it") for problem in problems]
        )
    return Override(path=path, value=value)


def command_line_of(
    overrides: Sequence[Override],
) -> tuple[CommandLine, tuple[Problem, ...]]:
    """The overrides as the topmost layer, and everything wrong with them; later ones win."""
    data: dict[str, Any] = {}
    nested: list[NestedArg] = []
    problems: list[Problem] = []
    for override in overrides:
        path = override.path
        if path[0] in _FORBIDDEN or (path[0] == _STAGES and len(path) < _STAGE_FIELD_DEPTH):
            problems.append(
                _at_fault(".".join(path), "cannot be set", "set a field of a stage by its name")
            )
        elif path[0] != _STAGES:
            problems += _put(data, path, override)
        elif path[2] == _ENGINE_ARGS and len(path) > _STAGE_FIELD_DEPTH + 1:
            _stage_entry(data, path[1])
            nested.append(NestedArg(stage=path[1], path=path[3:], value=override.value))
        elif path[2] == _ENV and len(path) == _STAGE_FIELD_DEPTH + 1:
            _put_env(_stage_entry(data, path[1]), path[3], override.value)
        else:
            problems += _put(_stage_entry(data, path[1]), path[2:], override)
    place = Place(source=Source(file="", data=data, command_line=True))
    spec, wrong = parse_model(InferencePipelineSpec, data, place)
    layer = CommandLine(spec=spec or InferencePipelineSpec(), place=place, nested=tuple(nested))
    return layer, (*problems, *wrong)


def _wants_text(path: tuple[str, ...]) -> bool:
    in_stage = path[0] == _STAGES and len(path) >= _STAGE_FIELD_DEPTH
    names = (_STAGES, *path[2:]) if in_stage else path
    if names[:2] == (_STAGES, _ENV):
        return True
    info = field_at(InferencePipelineSpec, names)
    return info is not None and is_text(info)


def _stage_entry(data: dict[str, Any], name: str) -> dict[str, Any]:
    stages: list[dict[str, Any]] = data.setdefault(_STAGES, [])
    entry = next((each for each in stages if each["name"] == name), None)
    if entry is None:
        entry = {"name": name}
        stages.append(entry)
    return entry


def _put_env(entry: dict[str, Any], name: str, value: object) -> None:
    kept = [each for each in entry.get(_ENV, []) if each["name"] != name]
    entry[_ENV] = [*kept, {"name": name, "value": value}]


def _put(node: dict[str, Any], path: tuple[str, ...], override: Override) -> list[Problem]:
    for name in path[:-1]:
        below = node.setdefault(name, {})
        if not isinstance(below, dict):
            return [_at_fault(".".join(override.path), f"`{name}` is set to a value as well", "")]
        node = below
    node[path[-1]] = override.value
    return []


def _at_fault(path: str, message: str, remedy: str) -> Problem:
    return Problem(file="", line=0, field=f"--set {path}", message=message, remedy=remedy)
