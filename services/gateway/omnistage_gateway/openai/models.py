"""The bodies of `GET /v1/models` and `GET /v1/models/{model}`."""

from collections.abc import Collection, Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from omnistage_common.ids import ModelName

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
    """Seconds since the Unix epoch: when its pipeline was loaded."""
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


def model_body(name: ModelName, created: int, report: ModelReport) -> bytes:
    """The body for one served name."""
    return msgspec.json.encode(ModelBody(name, created, report))


def model_list(models: Mapping[ModelName, ModelReport], created: int) -> bytes:
    """The body for all served names, in their order."""
    return msgspec.json.encode(
        ModelList(tuple(ModelBody(name, created, report) for name, report in models.items()))
    )
