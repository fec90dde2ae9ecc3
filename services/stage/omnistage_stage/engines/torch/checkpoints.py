"""A checkpoint folder, looked at before anything heavy happens, and loaded part by part.

A stage is one part of a model, and reads from the checkpoint what that part is made of and nothing
else: a `PartialModel` names a few modules of the whole model, and transformers' own loader (which
knows how the names of a checkpoint map to modules) fills exactly these.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from omnistage_common.errors import InvalidWeights, truncated
from omnistage_stage.engines.torch.placement import Placement

__all__ = ["Checkpoint", "load_part", "open_checkpoint"]

_WEIGHTS: Final = ("model.safetensors", "model.safetensors.index.json")
_NAMED: Final = 3
"""Missing tensors that an error names."""


class Checkpoint(Struct, frozen=True, kw_only=True):
    """A folder in Hugging Face format."""

    folder: Path
    config: Mapping[str, Any]
    """`config.json`."""

    @property
    def model_type(self) -> str:
        """The model family."""
        return str(self.config["model_type"])

    def require(self, field: str) -> Any:
        """A value of the configuration.

        Args:
            field: Path of keys with dots, e.g. `talker_config.speaker_id`.

        Raises:
            InvalidWeights: It is not there; names the file and the field.
        """
        value: Any = self.config
        for key in field.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
            if value is None:
                raise InvalidWeights(
                    f"{self.folder / 'config.json'} has no {field}; a checkpoint of "
                    f"{self.model_type} for this stage has it",
                    field="model",
                )
        return value

    def require_file(self, name: str) -> Path:
        """A file beside the weights.

        Raises:
            InvalidWeights: It is not there.
        """
        path = self.folder / name
        if not path.is_file():
            raise InvalidWeights(
                f"{self.folder} has no {name}, which this stage needs", field="model"
            )
        return path


def open_checkpoint(folder: Path) -> Checkpoint:
    """Looks at a checkpoint folder.

    Raises:
        InvalidWeights: `config.json` or the weights are missing or unreadable.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidWeights(
            f"{folder} has no readable config.json ({error.strerror}); the torch engine needs a "
            "checkpoint folder in Hugging Face format",
            field="model",
        ) from error
    except ValueError as error:
        raise InvalidWeights(f"{path} is not JSON: {error}", field="model") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InvalidWeights(f"{path} has no model_type", field="model")
    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise InvalidWeights(f"{folder} has neither {' nor '.join(_WEIGHTS)}", field="model")
    _require_shards(folder)
    return Checkpoint(folder=folder, config=config)


def _require_shards(folder: Path) -> None:
    index = folder / _WEIGHTS[1]
    if (folder / _WEIGHTS[0]).is_file() or not index.is_file():
        return
    try:
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError) as error:
        raise InvalidWeights(f"{index} has no weight_map", field="model") from error
    absent = sorted(name for name in files if not (folder / name).is_file())
    if absent:
        raise InvalidWeights(
            f"{folder} has no {absent[0]}, which {index.name} names"
            + (f" (and {len(absent) - 1} more)" if absent[1:] else ""),
            field="model",
        )


def load_part(model_class: Any, checkpoint: Checkpoint, placement: Placement) -> Any:
    """Loads a model class that holds some modules of the checkpoint's model.

    Args:
        model_class: A `PreTrainedModel` whose modules are named as in the whole model. Its
            `is_custom_code` must say False, or the names in the checkpoint are not mapped as for
            the whole model; `_keys_to_ignore_on_load_unexpected` names the parts it leaves out.
        checkpoint: Where from.
        placement: Where to, and as which type.

    Raises:
        InvalidWeights: A tensor is missing, of the wrong shape, or its file is broken.
    """
    from safetensors import SafetensorError  # noqa: PLC0415

    try:
        model, report = model_class.from_pretrained(
            checkpoint.folder,
            local_files_only=True,
            output_loading_info=True,
            dtype=placement.dtype,
        )
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise InvalidWeights(
            f"{checkpoint.folder} cannot be loaded: {truncated(str(error))}", field="model"
        ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        named = ", ".join(missing[:_NAMED])
        raise InvalidWeights(
            f"the weights in {checkpoint.folder} have no {named}"
            + (f" (and {len(missing) - _NAMED} more)" if missing[_NAMED:] else ""),
            field="model",
        )
    return model.to(placement.device).eval()
