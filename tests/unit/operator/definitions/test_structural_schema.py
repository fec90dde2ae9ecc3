"""The schemas keep the rules of structural schemas, and bound, describe and default everything."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from fakes.structural import nodes
from omnistage_common.pipeline.fields import outside_fields
from omnistage_common.pipeline.resources import KINDS, InferencePipeline, StageOverride
from omnistage_common.pipeline.resources.status import STATUSES
from omnistage_operator.definitions.schema import structural_schema
from omnistage_operator.definitions.writing import definition_of

KNOWN = {
    *("type", "description", "default", "enum", "format", "pattern", "required"),
    *("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "maxProperties"),
    *("properties", "items", "additionalProperties", "x-kubernetes-list-type"),
    "x-kubernetes-map-type",
    *("x-kubernetes-list-map-keys", "x-kubernetes-preserve-unknown-fields"),
    "x-kubernetes-validations",
}
SYSTEM = (".apiVersion", ".kind", ".metadata")
"""What every resource has; definitions leave it to the API server."""


@cache
def schema_of(kind: str) -> dict[str, Any]:
    version = definition_of(kind)["spec"]["versions"][0]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def own_nodes(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a definition says of a kind beside what every resource has."""
    return ((path, node) for path, node in nodes(schema_of(kind)) if not path.startswith(SYSTEM))


def bounded(node: dict[str, Any]) -> bool:
    match node["type"]:
        case "string":
            return bool("enum" in node or node.get("maxLength", 2**31) <= 65_536)
        case "integer":
            return bool(node.get("minimum", -1) >= 0 and node.get("maximum", 2**63) < 2**53)
        case "array":
            return bool(node.get("maxItems", 2**31) <= 64)
        case "object" if "properties" not in node:
            return bool(node.get("maxProperties", 2**31) <= 64)
        case _:
            return True


def merges(node: dict[str, Any]) -> bool:
    """Whether a list says how it merges, in a way that fits what it holds."""
    items, keys = node["items"], node.get("x-kubernetes-list-map-keys", [])
    match node.get("x-kubernetes-list-type"):
        case "map":
            return bool(keys) and set(keys) <= set(items["required"])
        case "set":
            return bool(items["type"] == "string")
        case other:
            return bool(other == "atomic")


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_said_that_a_structural_schema_may_not_say(kind: str) -> None:
    for path, node in nodes(schema_of(kind)):
        assert set(node) <= KNOWN, path
        assert node["type"] in {"object", "array", "string", "integer", "boolean"}, path
        assert not ("properties" in node and "additionalProperties" in node), path


@pytest.mark.parametrize("kind", KINDS)
def test_of_its_metadata_a_definition_bounds_the_name_only(kind: str) -> None:
    metadata = schema_of(kind)["properties"]["metadata"]

    assert set(metadata) == {"type", "properties"}
    assert set(metadata["properties"]) == {"name"}
    assert metadata["properties"]["name"]["maxLength"] == 63


@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_bounded(kind: str) -> None:
    assert [path for path, node in own_nodes(kind) if not bounded(node)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_has_a_sentence_on_one_line(kind: str) -> None:
    assert [
        path
        for path, node in own_nodes(kind)
        if (node["type"] == "object" or not path.endswith(("[]", "{}")))
        and not re.fullmatch(r"[A-Z`].*\.", node.get("description", ""))
    ] == []


@pytest.mark.parametrize("kind", KINDS)
def test_lists_say_how_they_merge(kind: str) -> None:
    lists = [(path, node) for path, node in own_nodes(kind) if node["type"] == "array"]

    assert lists
    assert [path for path, node in lists if not merges(node)] == []


@pytest.mark.parametrize(
    ("kind", "path", "keys"),
    [
        ("PipelineTemplate", ".spec.stages", ["name"]),
        ("PipelineTemplate", ".spec.stages[].produces", ["name"]),
        ("PipelineTemplate", ".spec.stages[].defaults.env", ["name"]),
        ("PipelineTemplate", ".spec.edges", ["from", "to", "output"]),
        ("InferencePipeline", ".spec.stages", ["name"]),
        ("InferencePipeline", ".status.conditions", ["type"]),
        ("InferencePipeline", ".status.stages", ["name"]),
        ("InferencePipeline", ".status.gateways", ["name"]),
        ("InferencePipeline", ".status.revisions", ["revision"]),
        ("Stage", ".spec.receives", ["name"]),
        ("Stage", ".status.revisions", ["revision"]),
    ],
)
def test_what_has_a_name_merges_by_it(kind: str, path: str, keys: list[str]) -> None:
    node = dict(nodes(schema_of(kind)))[path]

    assert node["x-kubernetes-list-type"] == "map"
    assert node["x-kubernetes-list-map-keys"] == keys


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("InferencePipeline", ".spec.model.servedNames"),
        ("InferencePipeline", ".status.gateways[].routable"),
        ("InferencePipeline", ".status.gateways[].inUse"),
    ],
)
def test_names_alone_are_a_set(kind: str, path: str) -> None:
    assert dict(nodes(schema_of(kind)))[path]["x-kubernetes-list-type"] == "set"


@pytest.mark.parametrize("kind", KINDS)
def test_engine_arguments_are_a_free_object(kind: str) -> None:
    free = [node for path, node in nodes(schema_of(kind)) if path.endswith(".engineArgs")]

    assert free
    for node in free:
        assert node["x-kubernetes-preserve-unknown-fields"] is True
        assert "additionalProperties" not in node


def test_what_an_override_leaves_out_stays_left_out() -> None:
    fields = structural_schema(StageOverride)["properties"]

    assert set(fields) == set(outside_fields(StageOverride))
    assert [name for name, node in fields.items() if "default" in node] == []
    assert [path for path, node in nodes(fields["limits"]) if "default" in node] == []


@pytest.mark.parametrize(
    ("path", "default"),
    [
        (".spec.timeouts", {}),
        (".spec.timeouts.request", "120s"),
        (".spec.streaming.chunked", True),
        (".spec.rollout.strategy", "Surge"),
        (".spec.transfer.transport", "Auto"),
        (".spec.topology.edges[].mode", "Full"),
        (".spec.topology.edges[].optional", False),
        (".spec.topology.edges[].chunk.firstFrames", [2, 4, 8, 16]),
        (".spec.topology.stages[].defaults", {}),
        (".spec.topology.stages[].defaults.limits.maxRunning", 16),
    ],
)
def test_a_default_of_the_model_is_one_of_the_schema(path: str, default: object) -> None:
    assert dict(nodes(schema_of("InferencePipeline")))[path]["default"] == default


def test_a_stage_has_a_number_of_replicas_to_scale() -> None:
    version = definition_of("Stage")["spec"]["versions"][0]

    assert schema_of("Stage")["properties"]["spec"]["properties"]["replicas"]["default"] == 1
    assert version["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_status_stands_apart_and_has_no_defaults(kind: str) -> None:
    version = definition_of(kind)["spec"]["versions"][0]

    assert ("status" in version.get("subresources", {})) == (kind in STATUSES)
    assert ("status" in schema_of(kind)["properties"]) == (kind in STATUSES)
    assert [
        path
        for path, node in nodes(schema_of(kind))
        if path.startswith(".status") and "default" in node
    ] == []


@pytest.mark.parametrize("kind", KINDS)
def test_columns_and_selectable_fields_lead_to_fields(kind: str) -> None:
    version = definition_of(kind)["spec"]["versions"][0]
    known = {path for path, _ in nodes(schema_of(kind))}
    paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]]
    paths += [field["jsonPath"] for field in version.get("selectableFields", ())]

    for path in paths:
        plain = re.sub(r"\[\?\(@\.type==\"Ready\"\)\]", "[]", path)
        assert plain in {*known, ".metadata.creationTimestamp"}


def test_a_model_without_a_default_gets_none() -> None:
    template = structural_schema(InferencePipeline)["properties"]["spec"]["properties"]["template"]

    assert "default" not in template
    assert template["required"] == ["name"]
