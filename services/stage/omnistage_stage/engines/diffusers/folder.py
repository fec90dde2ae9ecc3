"""What a model folder in diffusers' format holds, and what is missing from it. Reads, loads nothing.

A component needs the weights of its own submodules, and the configuration of those whose shape it
must know. Everything is looked for before the first byte of weights is read, so that a folder that
cannot work is refused within milliseconds, by file and field.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from omnistage_common.errors import InvalidWeights
from omnistage_stage.engines.diffusers.arguments import Component

__all__ = ["ModelFolder", "Needs", "Submodule", "needs_of", "read_model_folder"]

INDEX: Final = "model_index.json"
_MODEL_CONFIG: Final = "config.json"
_PARTS: Final = {
    Component.TEXT_ENCODER: ("text_encoder", "tokenizer"),
    Component.DENOISER: ("transformer", "unet", "scheduler", "projection_model"),
    Component.DECODER: ("vae",),
}
"""How the names of a component's submodules begin."""
_SHAPES: Final = ("transformer", "vae")
"""How the names of the submodules begin whose shape every component must know."""


class Submodule(Struct, frozen=True, kw_only=True):
    """One entry of `model_index.json`."""

    name: str
    library: str
    class_name: str

    @property
    def is_model(self) -> bool:
        """Whether it has weights."""
        return not self._configured_by

    @property
    def _configured_by(self) -> tuple[str, ...]:
        """Files of which one must be there, for what has no weights."""
        if self.class_name.endswith("Scheduler"):
            return ("scheduler_config.json",)
        if self.name.startswith("tokenizer"):
            return ("tokenizer_config.json", "tokenizer.json", "vocab.json", "spiece.model")
        if self.class_name.endswith(("Processor", "ProcessorFast", "FeatureExtractor")):
            return ("preprocessor_config.json", "processor_config.json", "config.json")
        return ()


class Needs(Struct, frozen=True, kw_only=True):
    """What a component needs of a folder."""

    loaded: tuple[str, ...]
    """Names of submodules that it computes with."""
    shapes: tuple[str, ...]
    """Names of submodules of which it needs the configuration only."""


class ModelFolder(Struct, frozen=True, kw_only=True):
    """A folder with a readable `model_index.json`."""

    path: Path
    pipeline: str
    """Name of the pipeline's class."""
    submodules: dict[str, Submodule]
    """By name; those that the model leaves out are not in it."""
    options: dict[str, Any]
    """Values that the pipeline's constructor takes beside submodules."""

    def require(self, needs: Needs) -> None:
        """Checks that every file is there.

        Raises:
            InvalidWeights: Some are not; names each.
        """
        if not needs.loaded:
            raise InvalidWeights(
                f"{self.path}: {INDEX} names no submodule that this component computes with; "
                f"it names {', '.join(sorted(self.submodules)) or 'none'}",
                field="model",
            )
        missing = [
            *(problem for name in needs.loaded for problem in self._missing_of(name)),
            *(problem for name in needs.shapes for problem in self._missing_config(name)),
        ]
        if missing:
            raise InvalidWeights(
                f"{self.path} is not complete: {'; '.join(missing)}", field="model"
            )

    def _missing_of(self, name: str) -> Iterator[str]:
        submodule = self.submodules[name]
        folder = self.path / name
        wanted = f"{INDEX} names {name} ({submodule.class_name})"
        if not folder.is_dir():
            yield f"{wanted}, but there is no folder {name}/"
        elif not submodule.is_model:
            files = submodule._configured_by  # noqa: SLF001
            if not any((folder / file).is_file() for file in files):
                yield f"{wanted}, but {name}/ has no {' or '.join(files)}"
        else:
            yield from self._missing_config(name)
            yield from self._missing_weights(name)

    def _missing_config(self, name: str) -> Iterator[str]:
        if not (self.path / name / _MODEL_CONFIG).is_file():
            yield f"{name}/{_MODEL_CONFIG} is missing"

    def _missing_weights(self, name: str) -> Iterator[str]:
        folder = self.path / name
        indices = sorted(folder.glob("*.safetensors.index.json"))
        if not indices and not any(folder.glob("*.safetensors")):
            yield f"{name}/ has no *.safetensors"
        for index in indices:
            shards = set(_mapping(_json(index), "weight_map", index).values())
            yield from (
                f"{index.name} names {name}/{shard}, which is missing"
                for shard in sorted(map(str, shards))
                if not (folder / shard).is_file()
            )


def read_model_folder(path: Path) -> ModelFolder:
    """Reads `model_index.json`.

    Raises:
        InvalidWeights: It is missing or not one; names file and field.
    """
    file = path / INDEX
    if not file.is_file():
        raise InvalidWeights(
            f"{path} has no {INDEX}; the diffusers engine needs a pipeline's folder in diffusers "
            "format",
            field="model",
        )
    index = _json(file)
    if not isinstance(index, dict):
        raise InvalidWeights(f"{file} is not a JSON object", field="model")
    pipeline = index.get("_class_name")
    if not isinstance(pipeline, str):
        raise InvalidWeights(
            f"{file}: _class_name is {pipeline!r}; it must name a pipeline class of diffusers "
            "(pipelines with code of their own are not run)",
            field="model",
        )
    entries = {name: value for name, value in index.items() if not name.startswith("_")}
    listed = {name: value for name, value in entries.items() if isinstance(value, list)}
    return ModelFolder(
        path=path,
        pipeline=pipeline,
        submodules={
            name: _submodule(name, value, file) for name, value in listed.items() if any(value)
        },
        options={name: value for name, value in entries.items() if name not in listed},
    )


def needs_of(component: Component, submodules: Iterable[str]) -> Needs:
    """What a component needs of the submodules that a model has."""
    names = sorted(submodules)
    if component is Component.WHOLE:
        return Needs(loaded=tuple(names), shapes=())
    loaded = tuple(name for name in names if name.startswith(_PARTS[component]))
    return Needs(
        loaded=loaded,
        shapes=tuple(name for name in names if name.startswith(_SHAPES) and name not in loaded),
    )


def _submodule(name: str, value: list[Any], file: Path) -> Submodule:
    match value:
        case [str(library), str(class_name)]:
            return Submodule(name=name, library=library, class_name=class_name)
        case _:
            raise InvalidWeights(
                f"{file}: {name} is {value!r}; it must be [library, class]", field="model"
            )


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except ValueError as error:
        raise InvalidWeights(f"{file} is not JSON: {error}", field="model") from error


def _mapping(document: Any, key: str, file: Path) -> dict[str, Any]:
    value = document.get(key) if isinstance(document, dict) else None
    if not isinstance(value, dict):
        raise InvalidWeights(f"{file} has no object {key}", field="model")
    return value
