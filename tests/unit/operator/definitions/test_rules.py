"""The rules are well-formed data: they name fields that exist and say what to do.

Whether they hold what they say is tested on a real API server (`tests/cluster/test_definitions.py`).
"""

import re
from typing import Any

import pytest

from fakes.structural import nodes
from omnistage_common.pipeline.resources import KINDS, Model
from omnistage_operator.definitions.rule import Reason, Rule, literal
from omnistage_operator.definitions.rules import IMMUTABLE, RULES, key_lengths
from omnistage_operator.definitions.schema import structural_schema
from omnistage_operator.definitions.writing import definition_of

EVERY = [
    pytest.param(model, rule, id=f"{model.__name__}{rule.field_path or ''}-{number}")
    for model, rules in RULES.items()
    for number, rule in enumerate(rules)
]
MAX_MESSAGE = 2048
"""What the API server takes; it refuses line breaks too."""


@pytest.mark.parametrize(("model", "rule"), EVERY)
def test_a_rule_blames_a_field_that_exists(model: type[Model], rule: Rule) -> None:
    paths = {path for path, _ in nodes(structural_schema(model))}

    assert (rule.field_path or "") in paths


@pytest.mark.parametrize(("model", "rule"), EVERY)
def test_a_rule_reads_fields_that_exist(model: type[Model], rule: Rule) -> None:
    fields = structural_schema(model)["properties"]

    for name in re.findall(r"\bself\.([A-Za-z]+)", rule.rule):
        assert name in fields


@pytest.mark.parametrize(("model", "rule"), EVERY)
def test_a_message_is_one_line_with_a_remedy(model: type[Model], rule: Rule) -> None:
    assert 0 < len(rule.message) <= MAX_MESSAGE, model
    assert "\n" not in rule.message
    assert ";" in rule.message or rule.expression, "say what to do instead"


@pytest.mark.parametrize(("model", "rule"), EVERY)
def test_an_optional_field_is_asked_for_before_it_is_read(model: type[Model], rule: Rule) -> None:
    schema = structural_schema(model)
    sure = {*schema.get("required", ())}
    sure |= {name for name, node in schema["properties"].items() if "default" in node}
    for name in set(re.findall(r"\bself\.([A-Za-z]+)", rule.rule)) - sure:
        assert f"has(self.{name})" in rule.rule


@pytest.mark.parametrize("kind", KINDS)
def test_rules_stand_wherever_their_model_does(kind: str) -> None:
    version = definition_of(kind)["spec"]["versions"][0]
    placed = {
        rule["rule"]
        for _, node in nodes(version["schema"]["openAPIV3Schema"])
        for rule in node.get("x-kubernetes-validations", ())
    }
    expected: set[Any] = set()
    for model in _models_below(KINDS[kind]):
        expected |= {rule.rule for rule in RULES.get(model, ())}

    assert expected <= placed


def _models_below(model: type[Model]) -> set[type[Model]]:
    names = set(model.model_json_schema().get("$defs", {}))
    return {each for each in RULES if each.__name__ in names}


def test_only_the_spec_of_a_template_stays_as_it_was_made() -> None:
    assert set(IMMUTABLE) == {"PipelineTemplate"}
    for kind in KINDS:
        version = definition_of(kind)["spec"]["versions"][0]
        whole = version["schema"]["openAPIV3Schema"]
        rules = whole["properties"]["spec"].get("x-kubernetes-validations", ())
        assert any("oldSelf" in rule["rule"] for rule in rules) == (kind in IMMUTABLE)


def test_a_rule_is_written_without_what_it_does_not_say() -> None:
    rule = Rule(rule="true", message="never; do nothing", reason=Reason.FORBIDDEN)

    assert rule.as_json() == {
        "rule": "true",
        "message": "never; do nothing",
        "reason": "FieldValueForbidden",
    }


def test_text_in_cel_is_quoted_and_sorted() -> None:
    assert literal(["b", "a'"]) == "['a\\'', 'b']"
    assert literal({"y": "2", "x": "1"}) == "{'x': '1', 'y': '2'}"


def test_keys_of_maps_are_bounded_by_a_rule() -> None:
    assert key_lengths({"maxLength": 9}).rule == "self.all(key, size(key) >= 0 && size(key) <= 9)"
