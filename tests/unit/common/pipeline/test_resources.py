"""The models hold what a cluster's definitions need: a sentence and a bound on everything."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from omnistage_common.ids import OutputName, StageName
from omnistage_common.pipeline.fields import model_at, outside_fields
from omnistage_common.pipeline.resources import (
    API_VERSION,
    KINDS,
    Model,
    TopologyEdge,
)
from omnistage_common.pipeline.resources.values import PATTERN_REMEDIES


def models_below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for name in outside_fields(model):
        below = model_at(model, [name])
        if below is not None:
            yield from models_below(below)


MODELS = sorted(
    {each for kind in KINDS.values() for each in models_below(kind)}, key=lambda each: each.__name__
)


def schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every value of every kind's schema, with where it stands."""

    def walk(where: str, node: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        if isinstance(node, dict):
            yield where, node
            for key, value in node.items():
                if key not in {"default", "enum"}:
                    yield from walk(f"{where}.{key}", value)
        elif isinstance(node, list):
            for index, value in enumerate(node):
                yield from walk(f"{where}[{index}]", value)

    for name, kind in KINDS.items():
        yield from walk(name, kind.model_json_schema())


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_has_a_sentence(model: type[BaseModel]) -> None:
    for name, info in outside_fields(model).items():
        assert info.description, name
        assert info.description[0].isupper() or info.description[0] == "`", name
        assert info.description.endswith("."), name


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_model_is_frozen_and_knows_all_its_fields(model: type[BaseModel]) -> None:
    assert issubclass(model, Model)
    assert model.model_config["frozen"]
    assert model.model_config["extra"] == "forbid"
    inherited = set().union(*(getattr(base, "model_fields", {}) for base in model.__bases__))
    assert len(set(model.model_fields) - inherited) <= 12


def test_every_list_map_text_and_number_is_bounded() -> None:
    unbounded = []
    for where, schema in schemas():
        needs = {
            "array": {"maxItems"},
            "string": {"maxLength", "enum", "const"},
            "integer": {"maximum", "minimum"},
        }.get(schema.get("type", ""), set())
        if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
            needs = {"maxProperties"}
        if needs and not needs & schema.keys() and not where.endswith(".propertyNames"):
            unbounded.append(where)

    assert unbounded == []


def test_there_are_no_floats_and_no_unions_but_with_null() -> None:
    for where, schema in schemas():
        assert schema.get("type") != "number", where
        choices = [each for each in schema.get("anyOf", []) if each.get("type") != "null"]
        assert len(choices) <= 1, where
        assert "oneOf" not in schema, where


def test_no_model_contains_itself() -> None:
    def descend(model: type[BaseModel], above: tuple[type[BaseModel], ...]) -> None:
        assert model not in above
        for name in outside_fields(model):
            below = model_at(model, [name])
            if below is not None:
                descend(below, (*above, model))

    for kind in KINDS.values():
        descend(kind, ())


def test_every_pattern_has_its_remedy_in_words() -> None:
    patterns = {
        schema["pattern"] for _, schema in schemas() if isinstance(schema.get("pattern"), str)
    }

    assert patterns <= PATTERN_REMEDIES.keys()


def test_the_examples_in_the_remedies_fit_their_patterns() -> None:
    for pattern, remedy in PATTERN_REMEDIES.items():
        for example in re.findall(r"e\.g\. (.*)$", remedy):
            for written in re.findall(r"`([^`]+)`", example):
                assert re.search(pattern, written), (pattern, written)


def test_the_names_outside_are_camel_case() -> None:
    for model in MODELS:
        assert [
            name
            for name in outside_fields(model)
            if not re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", name)
        ] == []


def test_python_uses_its_own_names_for_the_ends_of_an_edge() -> None:
    edge = TopologyEdge(producer=StageName("a"), consumer=StageName("b"), output=OutputName("x"))

    assert json.loads(edge.model_dump_json(by_alias=True, exclude_unset=True)) == {
        "from": "a",
        "to": "b",
        "output": "x",
    }


def test_a_resource_does_not_change() -> None:
    edge = TopologyEdge(producer=StageName("a"), consumer=StageName("b"), output=OutputName("x"))

    with pytest.raises(ValidationError):
        edge.optional = True


def test_each_kind_is_registered_under_its_name_and_version() -> None:
    for name, kind in KINDS.items():
        assert kind.model_fields["kind"].default == name
        assert kind.model_fields["api_version"].default == API_VERSION
