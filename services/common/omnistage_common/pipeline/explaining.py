"""What pydantic found, in words that name the field, the value and the remedy.

One row of a table for each kind of error that our models can give; the words for a field come from
the models themselves, so that a new field needs nothing here.
"""

from collections.abc import Callable
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from omnistage_common.pipeline.problems import Place, Problem, closest, shown
from omnistage_common.pipeline.resources.values import PATTERN_REMEDIES

__all__ = ["explain"]

_Words = tuple[str, str]


def explain(error: ValidationError, place: Place, model: type[BaseModel]) -> list[Problem]:
    """The problems that pydantic found in what stands at a place."""
    return [_problem(each, place, model) for each in error.errors(include_url=False)]


def _problem(detail: ErrorDetails, place: Place, model: type[BaseModel]) -> Problem:
    path = [part for part in detail["loc"] if part != "[key]"]
    where = place.at(*path)
    kind = detail["type"]
    if kind == "extra_forbidden":
        known = _fields(_model_at(model, path[:-1]))
        return where.problem("unknown field", closest(str(path[-1]), known, what="known fields"))
    if kind == "missing":
        return where.problem("is required", _described(_model_at(model, path[:-1]), str(path[-1])))
    message, remedy = _words(detail)
    return where.problem(message, remedy)


def _words(detail: ErrorDetails) -> _Words:
    row = _ROWS.get(detail["type"])
    if row is None:
        return f"{detail['msg']}: {shown(detail['input'])}", ""
    return row(detail["input"], detail.get("ctx", {}))


def _wrong_type(what: str) -> Callable[[Any, dict[str, Any]], _Words]:
    def words(value: Any, _context: dict[str, Any]) -> _Words:
        return f"must be {what}, not {shown(value)}", ""

    return words


def _not_text(value: Any, _context: dict[str, Any]) -> _Words:
    quotable = isinstance(value, (bool, int, float))
    return f"must be text, not {shown(value)}", f"quote it: {_quoted(value)}" if quotable else ""


def _quoted(value: object) -> str:
    return '"' + shown(value).strip("`") + '"'


def _not_one_of(value: Any, context: dict[str, Any]) -> _Words:
    choices = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
    remedy = closest(str(value), choices, what="choices")
    return f"is {shown(value)}, which is not one of {', '.join(choices)}", (
        remedy if remedy.startswith("did you mean") else ""
    )


def _not_matching(value: Any, context: dict[str, Any]) -> _Words:
    return f"is {shown(value)}, which has the wrong form", PATTERN_REMEDIES[context["pattern"]]


def _bound(word: str, key: str) -> Callable[[Any, dict[str, Any]], _Words]:
    def words(value: Any, context: dict[str, Any]) -> _Words:
        return f"must be {word} {context[key]}, not {shown(value)}", ""

    return words


def _length(word: str, key: str, unit: str) -> Callable[[Any, dict[str, Any]], _Words]:
    def words(value: Any, context: dict[str, Any]) -> _Words:
        actual = context.get("actual_length", len(value))
        return f"must have {word} {context[key]} {unit}, not {actual}", ""

    return words


_ROWS: Final[dict[str, Callable[[Any, dict[str, Any]], _Words]]] = {
    "string_type": _not_text,
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


def _model_at(model: type[BaseModel], path: list[str | int]) -> type[BaseModel] | None:
    """The model of the value at a path; None where a value is no model."""
    current: type[BaseModel] | None = model
    for part in path:
        if isinstance(part, int):
            continue
        if current is None:
            return None
        current = next(
            (
                _model_in(info.annotation)
                for name, info in current.model_fields.items()
                if _outside_name(name, info) == part
            ),
            None,
        )
    return current


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _outside_name(name: str, info: Any) -> str:
    return str(info.validation_alias or info.alias or name)


def _fields(model: type[BaseModel] | None) -> list[str]:
    if model is None:
        return []
    return [_outside_name(name, info) for name, info in model.model_fields.items()]


def _described(model: type[BaseModel] | None, field: str) -> str:
    """What a missing field is for."""
    for name, info in (model.model_fields if model else {}).items():
        if _outside_name(name, info) == field and info.description:
            first = " ".join(info.description.split()).partition(". ")[0]
            return f"add it: {first.rstrip('.')}"
    return "add it"
