"""The schema of the values: it describes every one, refuses the rest, and what is made from it is new."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from omnistage_common.errors import SetupError
from unit.charts.rendering import CHART, ROOT, render
from unit.charts.writing import MADE

SCHEMA: Final[dict[str, Any]] = json.loads((CHART / "values.schema.json").read_text("utf-8"))
DEFAULTS: Final[dict[str, Any]] = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
OF_HELM: Final = {"global"}
"""Values that helm itself adds to those of a chart within a chart."""


def described(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and schema of every value."""
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}{name}", inner
        yield from described(inner, f"{path}{name}.")


def paths(defaults: dict[str, Any], path: str = "") -> Iterator[str]:
    """Path of every default; maps that people fill are one value."""
    for name, value in defaults.items():
        yield f"{path}{name}"
        if isinstance(value, dict):
            yield from paths(value, f"{path}{name}.")


def test_every_value_says_what_it_is() -> None:
    silent = [path for path, schema in described(SCHEMA) if not schema.get("description")]

    assert silent == []


def test_every_group_of_values_is_closed() -> None:
    open_ = [
        path
        for path, schema in described(SCHEMA)
        if "properties" in schema and schema.get("additionalProperties") is not False
    ]

    assert open_ == []
    assert SCHEMA["additionalProperties"] is False


def test_every_value_has_a_default_and_every_default_a_description() -> None:
    known = {path for path, _ in described(SCHEMA)}
    free = [path for path, schema in described(SCHEMA) if "properties" not in schema]
    given = {
        path for path in paths(DEFAULTS) if not any(path.startswith(f"{each}.") for each in free)
    }

    assert known - OF_HELM == given


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gateways": {}}, "additional properties 'gateways' not allowed"),
        ({"gateway": {"replica": 3}}, "additional properties 'replica' not allowed"),
        ({"gateway": {"replicas": "3"}}, "at '/gateway/replicas': got string, want integer"),
        ({"gateway": {"requests": {"bodyMiB": 64}}}, "at '/gateway/requests/bodyMiB': maximum"),
        ({"images": {"pullPolicy": "Sometimes"}}, "at '/images/pullPolicy': value must be one of"),
        ({"watchNamespaces": ["Team"]}, "at '/watchNamespaces/0': 'Team' does not match pattern"),
        ({"operator": {"image": {"digest": "1"}}}, "at '/operator/image/digest'"),
        ({"stages": {"engineImages": {"a=b": "c"}}}, "additional properties 'a=b' not allowed"),
    ],
    ids=str,
)
def test_what_is_no_value_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError) as refused:
        render(values)

    assert message in refused.value.message


def test_values_of_a_chart_around_this_one_are_let_through() -> None:
    assert render({"global": {"anything": 1}}).objects


@pytest.mark.parametrize(("path", "made"), MADE.items(), ids=lambda each: getattr(each, "name", ""))
def test_what_is_made_from_the_chart_is_new(path: Path, made: Callable[[], str]) -> None:
    shown = path.relative_to(ROOT)

    assert path.read_text(encoding="utf-8") == made(), (
        f"{shown} is old: run `python -m unit.charts.writing` in the folder tests"
    )


def test_plain_manifests_are_the_release_without_helm() -> None:
    (path,) = (path for path in MADE if path.suffix == ".yaml")
    plain = [each for each in yaml.safe_load_all(path.read_text("utf-8")) if each is not None]
    release = render({"definitions": {"install": False}}).objects

    assert {each["kind"] for each in plain} - {each["kind"] for each in release} == {"Namespace"}
    assert len(plain) == len(release) + 1
    assert "helm" not in json.dumps(plain).lower()
