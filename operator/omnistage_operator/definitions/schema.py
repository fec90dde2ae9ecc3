"""Models to structural schemas, the part of OpenAPI v3 that a cluster takes.

Everything follows from the models: types, bounds, sentences and defaults. What a JSON schema says
and a structural schema may not (references, alternatives with null, closed objects, names of keys)
is turned into what means the same. Defaults stand in the schema wherever the model has a value that
says something; a field that is left out by None gets none, for it lets the layer below show through.
A status gets none either: it holds what was observed and nothing else.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from omnistage_common.pipeline.resources import (
    EnvVar,
    FinalOutput,
    Model,
    Port,
    ReceivedPort,
    RequestInput,
    StageOverride,
    StageSpec,
    StageTemplate,
    Toleration,
    TopologyEdge,
)
from omnistage_common.pipeline.resources.status import (
    Condition,
    GatewayStatus,
    Observed,
    PipelineRevisionStatus,
    PipelineStageStatus,
    StageRevisionStatus,
)
from omnistage_operator.definitions.rule import Rule
from omnistage_operator.definitions.rules import RULES, key_lengths

__all__ = ["Schema", "structural_schema", "with_rules"]

Schema = dict[str, Any]

_LIST_KEYS: Final[Mapping[type[Model], tuple[str, ...]]] = {
    Condition: ("type",),
    EnvVar: ("name",),
    FinalOutput: ("stage", "output"),
    GatewayStatus: ("name",),
    PipelineRevisionStatus: ("revision",),
    PipelineStageStatus: ("name",),
    Port: ("name",),
    ReceivedPort: ("name",),
    RequestInput: ("name",),
    StageOverride: ("name",),
    StageRevisionStatus: ("revision",),
    StageTemplate: ("name",),
    Toleration: (),
    TopologyEdge: ("from", "to", "output"),
}
"""Item of a list -> the fields that tell items apart; none: the list is replaced as a whole."""

_CLUSTER_DEFAULTS: Final = {(StageSpec.__name__, "replicas"): 1}
"""Defaults that only a cluster needs: `kubectl scale` and autoscalers act on a number."""

_KEYS: Final = {each.__name__: keys for each, keys in _LIST_KEYS.items()}
_RULES: Final = {each.__name__: rules for each, rules in RULES.items()}
_FREE: Final = "JsonValue"
_KEPT: Final = (
    "format",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "maxProperties",
)
_LARGEST_INT32: Final = 2**31 - 1


def structural_schema(model: type[Model]) -> Schema:
    """The structural schema of a resource, a spec or a status, with the rules of its models."""
    whole = model.model_json_schema(by_alias=True)
    converter = _Converter(
        definitions=whole.get("$defs", {}), with_defaults=not issubclass(model, Observed)
    )
    return converter.converted({**whole, "title": model.__name__})


def with_rules(schema: Schema, rules: Iterable[Rule]) -> Schema:
    """A schema with these rules behind those that it has."""
    entries = [*schema.get("x-kubernetes-validations", ()), *(rule.as_json() for rule in rules)]
    return {**schema, "x-kubernetes-validations": entries} if entries else schema


class _Converter:
    """One model's JSON schema, node by node."""

    def __init__(self, *, definitions: Mapping[str, Schema], with_defaults: bool) -> None:
        self._definitions = definitions
        self._with_defaults = with_defaults

    def converted(self, node: Schema) -> Schema:
        """A node with everything below it; its default is its owner's to decide."""
        plain = self._resolved(node)
        schema: Schema = {"type": plain["type"]}
        if "description" in plain:
            schema["description"] = " ".join(plain["description"].split())
        schema |= {key: plain[key] for key in _KEPT if key in plain}
        if "enum" in plain:
            schema["enum"] = list(plain["enum"])
        if plain["type"] == "integer":
            schema["format"] = "int32" if plain["maximum"] <= _LARGEST_INT32 else "int64"
        elif plain["type"] == "array":
            schema |= self._list(plain["items"])
        elif "properties" in plain:
            schema |= self._fields(plain)
            return with_rules(schema, _RULES.get(plain["title"], ()))
        elif plain["type"] == "object":
            return self._map(schema, plain)
        return schema

    def _resolved(self, node: Schema) -> Schema:
        """A node without references and without null as an alternative."""
        if "anyOf" in node:
            value = next(each for each in node["anyOf"] if each.get("type") != "null")
            beside = {key: each for key, each in node.items() if key not in {"anyOf", "title"}}
            return self._resolved({**value, **beside})
        if "$ref" in node:
            name = node["$ref"].rpartition("/")[2]
            return {**self._definitions[name], **node, "title": name}
        return node

    def _fields(self, plain: Schema) -> Schema:
        properties: dict[str, Schema] = {}
        for name, node in plain["properties"].items():
            schema = self.converted(node)
            default = _CLUSTER_DEFAULTS.get((plain["title"], name), _said(node.get("default")))
            if self._with_defaults and default is not None:
                # The default of an object is what its fields' own defaults make of an empty one.
                schema["default"] = {} if isinstance(default, dict) else default
            properties[name] = schema
        required = {"required": plain["required"]} if "required" in plain else {}
        return {"properties": properties, **required}

    def _list(self, items: Schema) -> Schema:
        resolved = self._resolved(items)
        found: Schema = {"items": self.converted(items)}
        if resolved["type"] == "object":
            keys = _KEYS[resolved["title"]]
            if keys:
                return {
                    **found,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": [*keys],
                }
            return {**found, "x-kubernetes-list-type": "atomic"}
        # Lists of text are names, which are in no order; lists of numbers are sequences.
        kind = "set" if resolved["type"] == "string" else "atomic"
        return {**found, "x-kubernetes-list-type": kind}

    def _map(self, schema: Schema, plain: Schema) -> Schema:
        # Whoever writes a map writes all of it. Merged key by key, one that is emptied would be left
        # as null, which is no map.
        schema["x-kubernetes-map-type"] = "atomic"
        values = plain["additionalProperties"]
        if values.get("$ref", "").endswith(_FREE):
            return {**schema, "x-kubernetes-preserve-unknown-fields": True}
        schema["additionalProperties"] = self.converted(values)
        bounded = "propertyNames" in plain
        return with_rules(schema, [key_lengths(plain["propertyNames"])] if bounded else [])


def _said(default: object) -> object:
    """A default without what says nothing: None and the empty; None when nothing is left."""
    if isinstance(default, dict):
        found = {key: value for key, each in default.items() if (value := _said(each)) is not None}
        return found or None
    return None if default == [] else default
