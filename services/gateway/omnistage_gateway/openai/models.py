"""The bodies of `GET /v1/models` and `GET /v1/models/{model}`."""

from collections.abc import Collection, Iterable
from typing import Literal

import msgspec
from msgspec import Struct

__all__ = ["ModelBody", "ModelList", "ModelReport", "model_body", "model_list", "model_report"]


class ModelReport(Struct, frozen=True):
    """The extension object `omnistage` of a model."""

    takes: tuple[str, ...]
    """What requests can bring: `conversation`, `text`, `audio`, `image`."""
    makes: tuple[str, ...]
    """Modalities of its answers: `text`, `audio`, `image`, `video`."""


class ModelBody(Struct, frozen=True):
    """A model, on the wire."""

    id: str
    created: int
    """Seconds since the Unix epoch: when its pipeline was made."""
    omnistage: ModelReport
    object: Literal["model"] = "model"
    owned_by: str = "omnistage"


class ModelList(Struct, frozen=True):
    """All models, on the wire."""

    data: tuple[ModelBody, ...]
    object: Literal["list"] = "list"


def model_report(takes: Collection[str], makes: Collection[str]) -> ModelReport:
    """What a model takes and makes, each in alphabetical order."""
    return ModelReport(tuple(sorted(takes)), tuple(sorted(makes)))


def model_body(model: ModelBody) -> bytes:
    """The body for one served name."""
    return msgspec.json.encode(model)


def model_list(models: Iterable[ModelBody]) -> bytes:
    """The body for all served names, in their order."""
    return msgspec.json.encode(ModelList(tuple(models)))
