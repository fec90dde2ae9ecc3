"""Tiny checkpoints by name: what there is is told without making any."""

from importlib import metadata

import pytest

from omnistage_common.errors import InvalidWeights, MissingDependency
from omnistage_stage.weights import weights_of
from omnistage_stage.weights.sources import TinySource, parse_source
from omnistage_stage.weights.tiny import TINY_NAMES, tiny_recipe


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    versions = {"transformers": "5.1", "diffusers": "0.9"}
    monkeypatch.setattr(metadata, "version", versions.__getitem__)
    return versions


@pytest.mark.parametrize("name", TINY_NAMES)
def test_every_name_is_a_source(name: str) -> None:
    assert parse_source(f"tiny://{name}") == TinySource(name=name)


@pytest.mark.parametrize("uri", ["tiny://", "tiny://a/b", "tiny:qwen3-omni", "tiny://../x"])
def test_what_is_no_name_is_told_with_examples(uri: str) -> None:
    with pytest.raises(InvalidWeights, match="tiny://qwen3-omni"):
        parse_source(uri)


def test_an_unknown_name_is_told_which_ones_there_are() -> None:
    with pytest.raises(InvalidWeights) as refused:
        weights_of("tiny://qwen4-omni")

    assert refused.value.field == "model"
    assert all(f"tiny://{name}" in refused.value.message for name in TINY_NAMES)


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(("name", "extra"), [("qwen3-omni", "torch"), ("wan", "diffusers")])
def test_a_library_that_is_not_installed_is_told_with_its_extra(name: str, extra: str) -> None:
    with pytest.raises(MissingDependency, match=rf"omnistage\[{extra}\]"):
        weights_of(f"tiny://{name}")


@pytest.mark.parametrize("name", TINY_NAMES)
def test_another_version_of_the_library_is_another_checkpoint(
    name: str, libraries: dict[str, str]
) -> None:
    first = tiny_recipe(name).key
    for library in libraries:
        libraries[library] += ".1"

    assert tiny_recipe(name).key != first
    assert first.startswith(f"tiny-{name}-")


@pytest.mark.usefixtures("libraries")
def test_they_need_no_network() -> None:
    assert weights_of("tiny://flux").local
