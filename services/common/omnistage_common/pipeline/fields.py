"""Finds a field of a model by the path its writer used.

The models are the only place that knows the fields; messages, overrides and the reference page ask
them through these few functions.
"""

from collections.abc import Iterator, Sequence
from types import UnionType
from typing import NewType, Union, get_args, get_origin

from pydantic import BaseModel, StringConstraints
from pydantic.fields import FieldInfo

__all__ = ["constraints_of", "field_at", "is_text", "model_at", "outside_fields"]


def outside_fields(model: type[BaseModel] | None) -> dict[str, FieldInfo]:
    """The fields of a model by the names that YAML uses."""
    fields = model.model_fields if model is not None else {}
    return {str(info.validation_alias or name): info for name, info in fields.items()}


def field_at(model: type[BaseModel], path: Sequence[str | int]) -> FieldInfo | None:
    """The field at a path; None where the path leads to no field. Indices are stepped over."""
    names = [part for part in path if isinstance(part, str)]
    if not names:
        return None
    return outside_fields(model_at(model, names[:-1])).get(names[-1])


def model_at(model: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel] | None:
    """The model of the value at a path, or of the items of the list there."""
    current: type[BaseModel] | None = model
    for part in path:
        if isinstance(part, str):
            info = outside_fields(current).get(part)
            current = next(_models_in(info.annotation), None) if info else None
    return current


def constraints_of(info: FieldInfo) -> StringConstraints | None:
    """What the text of a field must look like; None where nothing is asked."""
    return next(_constraints_in([*info.metadata, info.annotation]), None)


def is_text(info: FieldInfo) -> bool:
    """Whether a field is a single piece of text."""
    annotation = info.annotation
    optional = get_origin(annotation) in {Union, UnionType}
    return any(_is_text_type(each) for each in (get_args(annotation) if optional else [annotation]))


def _is_text_type(annotation: object) -> bool:
    if isinstance(annotation, NewType):
        return annotation.__supertype__ is str
    return annotation is str or (
        bool(getattr(annotation, "__metadata__", ()))
        and _is_text_type(getattr(annotation, "__origin__", None))
    )


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models_in(each)


def _constraints_in(annotations: Sequence[object]) -> Iterator[StringConstraints]:
    for each in annotations:
        if isinstance(each, StringConstraints):
            yield each
        yield from _constraints_in([*getattr(each, "__metadata__", ()), *get_args(each)])
