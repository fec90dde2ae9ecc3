"""The reference page of the resources, made from their models.

`python -m omnistage_common.pipeline.reference` prints it; a test holds the committed page in step.
One table for each model, in the order in which a reader of the four kinds meets them.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any, Final

from omnistage_common.pipeline.resources import (
    InferencePipeline,
    PipelineTemplate,
    Resource,
    Stage,
    StageRuntime,
)
from omnistage_common.pipeline.resources.values import BYTES_PATTERN, DURATION_PATTERN

__all__ = ["reference_page"]

_KINDS: Final[tuple[type[Resource], ...]] = (
    PipelineTemplate,
    StageRuntime,
    InferencePipeline,
    Stage,
)

_HEAD: Final = """\
# Pipeline resources

<!-- Made by `python -m omnistage_common.pipeline.reference`; do not edit. -->

The four kinds of `omnistage.io/v1alpha1`. The same files serve `omnistage up` on one machine and a
cluster. `omnistage validate FILE` finds every problem in them, `omnistage render FILE` shows the plan
they make. Fields marked **required** must be written; every other field has the default shown, or is
left out.

| form | written as |
|---|---|
| duration | whole numbers with units: `120s`, `1m30s`, `500ms` |
| bytes | a number with a unit: `64Mi`, `2Gi` |
| free object | any JSON object |
"""

_FORMS: Final = {DURATION_PATTERN: "duration", BYTES_PATTERN: "bytes"}
_FREE: Final = "JsonValue"
_Schema = dict[str, Any]


def reference_page() -> str:
    """The whole page, as Markdown."""
    parts = [_HEAD]
    described: set[str] = set()
    for kind in _KINDS:
        schema = kind.model_json_schema(by_alias=True)
        definitions: dict[str, _Schema] = schema.get("$defs", {})
        parts.append(_section("##", kind.__name__, schema, definitions))
        for name in _reached(schema, definitions):
            if name not in described:
                described.add(name)
                parts.append(_section("###", name, definitions[name], definitions))
    return "\n".join(parts)


def _section(level: str, name: str, schema: _Schema, definitions: dict[str, _Schema]) -> str:
    lines = [
        f"{level} {name}\n",
        f"{_one_line(schema['description'])}\n",
        "| field | type | default | meaning |",
        "|---|---|---|---|",
    ]
    properties: dict[str, _Schema] = schema["properties"]
    required = {name for name, each in properties.items() if "const" in each}
    required |= set(schema.get("required", []))
    for field in sorted(properties, key=lambda each: each not in required):
        of_field = properties[field]
        default = "**required**" if field in required else _default(of_field)
        words = _one_line(_described(of_field, definitions))
        lines.append(f"| `{field}` | {_type(of_field, definitions)} | {default} | {words} |")
    return "\n".join([*lines, ""])


def _described(schema: _Schema, definitions: dict[str, _Schema]) -> str:
    """A field's sentence; one that repeats its model's is kept at the model only."""
    own = schema.get("description")
    return str(own or definitions[schema["$ref"].rpartition("/")[2]]["description"])


def _reached(schema: _Schema, definitions: dict[str, _Schema]) -> Iterator[str]:
    """The models below a schema, each once, in reading order."""
    for name in dict.fromkeys(_references(schema.get("properties", {}))):
        if "properties" in definitions[name]:
            yield name
            yield from _reached(definitions[name], definitions)


def _references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield str(node["$ref"]).rpartition("/")[2]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def _type(schema: _Schema, definitions: dict[str, _Schema]) -> str:
    if "anyOf" in schema:
        return _type(
            next(each for each in schema["anyOf"] if each.get("type") != "null"), definitions
        )
    if "$ref" in schema:
        return _named_type(schema["$ref"].rpartition("/")[2], definitions)
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema["type"]
    if kind == "array":
        return f"list of {_type(schema['items'], definitions)}, at most {schema['maxItems']}"
    if kind == "object":
        free = schema["additionalProperties"].get("$ref", "").endswith(_FREE)
        return "free object" if free else f"map of text, at most {schema['maxProperties']}"
    if kind == "integer":
        return f"{schema['minimum']} to {schema['maximum']}"
    if kind == "string":
        return _FORMS.get(schema.get("pattern", ""), "text")
    return "true or false"


def _named_type(name: str, definitions: dict[str, _Schema]) -> str:
    choices = definitions[name].get("enum")
    if choices is None:
        return f"[{name}](#{name.lower()})"
    return ", ".join(f"`{choice}`" for choice in choices)


def _default(schema: _Schema) -> str:
    default = schema.get("default")
    if isinstance(default, str):
        return f"`{default}`"
    if default is None or default in ([], {}) or "$ref" in schema:
        return ""
    return f"`{json.dumps(default)}`"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference_page())
