"""Reads structural schemas as an API server does: every node, defaults, unknown fields."""

import copy
from collections.abc import Iterator
from typing import Any

__all__ = ["closed", "defaulted", "nodes"]

Schema = dict[str, Any]


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every value that a schema describes, with the path of its fields."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def defaulted(schema: Schema, value: Any) -> Any:
    """A value with the defaults that an API server fills in."""
    if isinstance(value, list):
        return [defaulted(schema["items"], item) for item in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    filled = dict(value)
    for name, below in schema["properties"].items():
        if name not in filled and "default" in below:
            filled[name] = copy.deepcopy(below["default"])
        if name in filled:
            filled[name] = defaulted(below, filled[name])
    return filled


def closed(schema: Schema) -> Schema:
    """A schema that refuses unknown fields, as strict validation of a request does."""
    shut = dict(schema)
    if "properties" in schema:
        shut["properties"] = {name: closed(each) for name, each in schema["properties"].items()}
        shut["additionalProperties"] = False
    elif isinstance(schema.get("additionalProperties"), dict):
        shut["additionalProperties"] = closed(schema["additionalProperties"])
    if "items" in schema:
        shut["items"] = closed(schema["items"])
    return shut
