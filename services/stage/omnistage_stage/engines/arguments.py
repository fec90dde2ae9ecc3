"""What an engine is told, checked: its `engineArgs` and the outputs it shall produce.

What a user writes there reaches a foreign runtime, where a misspelt key is silently lost and a
wrong type fails minutes later. So every key is known, every value typed and in range, and every
problem is reported at once, by name.
"""

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from omnistage_common.errors import SetupError
from omnistage_common.ids import OutputName
from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.protocol import EngineSpec

__all__ = ["parse_arguments", "sole_output"]

T = TypeVar("T", bound=msgspec.Struct)


def parse_arguments(arguments: Mapping[str, Any], into: type[T]) -> T:
    """The engine's arguments as a struct.

    Args:
        arguments: `engineArgs` of a stage.
        into: Struct with a default for every field; `msgspec.Meta` annotations give ranges.

    Raises:
        SetupError: A key is unknown, or a value has the wrong type or is out of range; names each.
    """
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(into)}
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for key, value in arguments.items():
        if key not in fields:
            problems[key] = f"unknown key{_suggestion(key, fields)}"
            continue
        try:
            values[key] = msgspec.convert(value, fields[key])
        except msgspec.ValidationError as error:
            problems[key] = f"{value!r} does not fit: {error}"
    if problems:
        raise SetupError(
            "; ".join(f"engineArgs.{key}: {problem}" for key, problem in problems.items())
            + f". Allowed keys: {', '.join(sorted(fields)) or 'none'}",
            field=f"engineArgs.{next(iter(problems))}",
        )
    return into(**values)


def sole_output(spec: EngineSpec, kind: PayloadKind) -> OutputName:
    """The name of the one output of an engine that makes one thing.

    Raises:
        SetupError: The template expects several outputs, none, or another kind.
    """
    if list(spec.produces.values()) != [kind]:
        expected = ", ".join(f"{name} ({other.value})" for name, other in spec.produces.items())
        raise SetupError(
            f"stage {spec.stage} produces {expected or 'nothing'} by its template; "
            f"its engine makes exactly one output of kind {kind.value}",
            field="produces",
        )
    return next(iter(spec.produces))


def _suggestion(key: str, fields: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key, fields, n=1)
    return f", did you mean {close[0]!r}?" if close else ""
