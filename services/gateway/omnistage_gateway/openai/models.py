"""The bodies of `GET /v1/models` and `GET /v1/models/{model}`."""

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct

from omnistage_common.ids import ModelName

__all__ = ["ModelBody", "ModelList", "model_body", "model_list"]


class ModelBody(Struct, frozen=True):
    """A model, on the wire."""

    id: str
    created: int
    """Seconds since the Unix epoch: when its pipeline was loaded."""
    object: Literal["model"] = "model"
    owned_by: str = "omnistage"


class ModelList(Struct, frozen=True):
    """All models, on the wire."""

    data: tuple[ModelBody, ...]
    object: Literal["list"] = "list"


def model_body(name: ModelName, created: int) -> bytes:
    """The body for one served name."""
    return msgspec.json.encode(ModelBody(name, created))


def model_list(names: Iterable[ModelName], created: int) -> bytes:
    """The body for all served names, in their order."""
    return msgspec.json.encode(ModelList(tuple(ModelBody(name, created) for name in names)))
