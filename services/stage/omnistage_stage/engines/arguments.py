"""`engineArgs`, parsed strictly into a struct of the engine's own.

What a user writes there reaches a foreign runtime, where a misspelt key is silently lost and a
wrong type fails minutes later. So every key is known, every value typed and in range, and every
problem is reported at once, by name.
"""

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from omnistage_common.errors import SetupError

__all__ = ["parse_arguments"]

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


def _suggestion(key: str, fields: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key, fields, n=1)
    return f", did you mean {close[0]!r}?" if close else ""
