"""What pydantic found, in words that name the field, the value and the remedy.

One row of a table for each kind of error that our models can give; the words for a field come from
the models themselves, so that a new field needs nothing here.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from omnistage_common.pipeline.fields import constraints_of, field_at, model_at, outside_fields
from omnistage_common.pipeline.problems import Place, Problem, closest, shown
from omnistage_common.pipeline.resources.values import PATTERN_REMEDIES

__all__ = ["explain"]

_Words = tuple[str, str]
_Row = Callable[[Any, dict[str, Any]], _Words]


def explain(error: ValidationError, place: Place, model: type[BaseModel]) -> list[Problem]:
    """The problems that pydantic found in what stands at a place."""
    return [_problem(each, place, model) for each in error.errors(include_url=False)]


def _problem(detail: ErrorDetails, place: Place, model: type[BaseModel]) -> Problem:
    path = [part for part in detail["loc"] if part != "[key]"]
    where = place.at(*path)
    if path == ["metadata", "namespace"] and detail["type"] == "extra_forbidden":
        return where.problem("unknown field", "this kind belongs to the whole cluster; remove it")
    if detail["type"] == "extra_forbidden":
        known = outside_fields(model_at(model, path[:-1]))
        return where.problem("unknown field", closest(str(path[-1]), known, what="known fields"))
    info = field_at(model, path)
    if detail["type"] == "missing":
        return where.problem("is required", _purpose(info))
    if detail["type"] == "string_type":
        return where.problem(*_not_text(detail["input"], info))
    row = _ROWS.get(detail["type"])
    if row is None:
        return where.problem(f"{detail['msg']}: {shown(detail['input'])}")
    return where.problem(*row(detail["input"], detail.get("ctx", {})))


def _purpose(info: FieldInfo | None) -> str:
    """What a missing field is for."""
    if info is None or not info.description:
        return "add it"
    return f"add it: {' '.join(info.description.split()).partition('. ')[0].rstrip('.')}"


def _not_text(value: Any, info: FieldInfo | None) -> _Words:
    message = f"must be text, not {shown(value)}"
    if not isinstance(value, (bool, int, float)):
        return message, ""
    text = shown(value).strip("`")
    constraints = constraints_of(info) if info else None
    pattern = constraints.pattern if constraints else None
    if isinstance(pattern, str) and not re.fullmatch(pattern, text):
        return message, PATTERN_REMEDIES[pattern]
    return message, f'quote it: "{text}"'


def _wrong_type(what: str) -> _Row:
    return lambda value, _: (f"must be {what}, not {shown(value)}", "")


def _bound(word: str, key: str) -> _Row:
    return lambda value, context: (f"must be {word} {context[key]}, not {shown(value)}", "")


def _length(word: str, key: str, unit: str) -> _Row:
    return lambda value, context: (
        f"must have {word} {context[key]} {unit}, not {context.get('actual_length', len(value))}",
        "",
    )


def _not_one_of(value: Any, context: dict[str, Any]) -> _Words:
    choices = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
    remedy = closest(str(value), choices, what="choices")
    return f"is {shown(value)}, which is not one of {', '.join(choices)}", (
        remedy if remedy.startswith("did you mean") else ""
    )


def _not_matching(value: Any, context: dict[str, Any]) -> _Words:
    return f"is {shown(value)}, which has the wrong form", PATTERN_REMEDIES[context["pattern"]]


_ROWS: Final[dict[str, _Row]] = {
    "int_type": _wrong_type("a whole number"),
    "int_from_float": _wrong_type("a whole number"),
    "bool_type": _wrong_type("true or false"),
    "tuple_type": _wrong_type("a list"),
    "dict_type": _wrong_type("a mapping"),
    "model_type": _wrong_type("a mapping"),
    "model_attributes_type": _wrong_type("a mapping"),
    "enum": _not_one_of,
    "literal_error": _not_one_of,
    "string_pattern_mismatch": _not_matching,
    "greater_than_equal": _bound("at least", "ge"),
    "less_than_equal": _bound("at most", "le"),
    "string_too_long": _length("at most", "max_length", "characters"),
    "string_too_short": _length("at least", "min_length", "characters"),
    "too_long": _length("at most", "max_length", "entries"),
    "too_short": _length("at least", "min_length", "entries"),
}
