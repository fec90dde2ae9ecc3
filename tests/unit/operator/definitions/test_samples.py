"""What is valid for `omnistage validate` is valid for the schema, and means the same afterwards."""

from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from fakes.resource_table import (
    INVALID,
    VALID,
    Invalid,
    all_valid_text,
    largest_template,
    text_of,
)
from fakes.structural import closed, defaulted
from omnistage_common.pipeline.loading import load_text
from omnistage_common.pipeline.problems import Severity
from omnistage_common.pipeline.resolver import resolve
from omnistage_common.pipeline.resources import KINDS
from omnistage_common.pipeline.validation import check
from omnistage_operator.definitions.writing import definition_of

SAMPLES = sorted((Path(__file__).parents[4] / "deploy" / "pipelines").glob("*.yaml"))


@cache
def schema_of(kind: str) -> dict[str, Any]:
    version = definition_of(kind)["spec"]["versions"][0]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def strict_schema_of(kind: str) -> dict[str, Any]:
    shut = closed(schema_of(kind))
    return {**shut, "properties": {**shut["properties"], "metadata": {"type": "object"}}}


def documents_of(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_passes_the_schema(path: Path) -> None:
    for document in documents_of(path):
        jsonschema.validate(document, strict_schema_of(document["kind"]))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_defaults_of_the_schema_change_no_revision(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    stored = yaml.safe_dump_all(
        defaulted(schema_of(document["kind"]), document) for document in documents_of(path)
    )
    plans = [resolve(load_text(text, file=path.name)) for text in (written, stored)]

    assert plans[0].revision == plans[1].revision
    assert plans[0].stages == plans[1].stages


def test_the_valid_resources_of_the_table_are_valid() -> None:
    for kind, document in VALID.items():
        jsonschema.validate(document, strict_schema_of(kind))

    found = check(load_text(all_valid_text(), file="table.yaml"))
    assert [problem for problem in found if problem.severity is Severity.ERROR] == []
    assert set(VALID) == set(KINDS)


def test_the_largest_graph_is_as_large_as_it_may_be() -> None:
    document = largest_template()
    spec = schema_of("PipelineTemplate")["properties"]["spec"]["properties"]

    jsonschema.validate(document, strict_schema_of("PipelineTemplate"))
    found = check(load_text(text_of(document), file="largest.yaml"))
    assert [problem for problem in found if problem.severity is Severity.ERROR] == []
    for name in ("stages", "edges", "outputs"):
        assert len(document["spec"][name]) == spec[name]["maxItems"]


@pytest.mark.parametrize("invalid", INVALID, ids=lambda invalid: invalid.claim)
def test_what_the_api_server_refuses_is_refused_here_too(invalid: Invalid) -> None:
    found = check(load_text(all_valid_text(invalid.document), file="table.yaml"))

    assert any(problem.severity is Severity.ERROR for problem in found) == invalid.local


def test_the_table_has_claims_of_its_own() -> None:
    claims = [(invalid.document["kind"], invalid.claim) for invalid in INVALID]

    assert len(set(claims)) == len(claims) >= 30
