"""Weights that had to be made, kept in a folder of their own and never trusted blindly.

An entry is a folder built once by a recipe. Invariants:

- An entry appears at its final name complete or not at all: it is built in a sibling folder and
  moved there by one rename, after its manifest (size and SHA-256 of every file) is on disk.
- An entry is checked against its manifest each time it is asked for (270 MB take 0.2 s). What is
  truncated, changed, half there or not in the manifest makes the entry worthless: it is moved
  aside and built anew.
- Processes that ask at once build once: a file lock beside the entry is held while it is checked
  (shared) or built (exclusive). The kernel drops it with its holder, so a killed builder leaves
  nothing but a folder that the next one removes.

The cache knows nothing of models: a recipe is a name, versions and a function that fills a folder.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from omnistage_common.errors import InvalidWeights
from omnistage_stage.weights.progress import Progress, silent

__all__ = ["MANIFEST_NAME", "Recipe", "WeightsCache", "default_cache_folder"]

MANIFEST_NAME = "manifest.json"
_BUILDING = ".building-"


class Recipe(Struct, frozen=True, kw_only=True):
    """How an entry is made."""

    name: str
    version: str
    """Version of what goes in."""
    recipe_version: int
    """Rises whenever `build` would make something else of the same input."""
    build: Callable[[Path, Progress], None]
    """Fills an empty folder."""

    @property
    def key(self) -> str:
        """Name of the entry's folder."""
        return f"{self.name}-{self.version}-{self.recipe_version}"


class _FileRecord(Struct, frozen=True, kw_only=True):
    size: int
    """Bytes."""
    sha256: str


class _Manifest(Struct, frozen=True, kw_only=True):
    key: str
    files: dict[str, _FileRecord]
    """Path relative to the entry -> what it must be."""


def default_cache_folder() -> Path:
    """`$OMNISTAGE_CACHE`, or `~/.cache/omnistage`."""
    return Path(os.environ.get("OMNISTAGE_CACHE") or Path.home() / ".cache" / "omnistage")


class WeightsCache:
    """The entries under one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "weights"

    def path(self, recipe: Recipe) -> Path:
        """Where an entry is, or will be."""
        return self._folder / recipe.key

    def problems(self, recipe: Recipe) -> list[str]:
        """Everything that is wrong with an entry, each naming the file; empty when it is whole."""
        return _problems(self.path(recipe), recipe.key)

    def prepare(self, recipe: Recipe, progress: Progress = silent) -> Path:
        """The folder of a whole entry; built first when there is none.

        Blocks while another process builds the same entry.

        Raises:
            InvalidWeights: The cache folder cannot be written.
            SetupError: What the recipe raised.
        """
        entry = self.path(recipe)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._locked(recipe, fcntl.LOCK_SH, progress):
                if not _problems(entry, recipe.key):
                    return entry
            with self._locked(recipe, fcntl.LOCK_EX, progress):
                self._build_unless_whole(recipe, progress)
        except OSError as error:
            raise InvalidWeights(
                f"weights cannot be prepared in {self._folder}: {error}. "
                "Free some space there, or name another folder in OMNISTAGE_CACHE",
                field="model",
            ) from error
        return entry

    @contextmanager
    def _locked(self, recipe: Recipe, mode: int, progress: Progress) -> Iterator[None]:
        with (self._folder / f"{recipe.key}.lock").open("ab") as file:
            try:
                fcntl.flock(file, mode | fcntl.LOCK_NB)
            except BlockingIOError:
                progress(f"waiting for another process that prepares {recipe.key}")
                fcntl.flock(file, mode)
            yield

    def _build_unless_whole(self, recipe: Recipe, progress: Progress) -> None:
        entry = self.path(recipe)
        problems = _problems(entry, recipe.key)
        if not problems:
            return
        for leftover in self._folder.glob(f"{_BUILDING}{recipe.key}-*"):
            shutil.rmtree(leftover)
        building = Path(tempfile.mkdtemp(prefix=f"{_BUILDING}{recipe.key}-", dir=self._folder))
        try:
            if entry.exists():
                progress(f"{problems[0]}: preparing {recipe.key} anew")
                entry.rename(building / "broken")
                shutil.rmtree(building / "broken")
            recipe.build(building, progress)
            progress(f"recording hashes of {recipe.key}")
            _write_manifest(building, recipe.key)
            building.chmod(0o755)
            building.rename(entry)
        finally:
            shutil.rmtree(building, ignore_errors=True)


def _write_manifest(folder: Path, key: str) -> None:
    """Records every file, and sees to it that files and record are on disk before it returns."""
    names = sorted(_files(folder))
    for name in names:
        (folder / name).chmod(0o644)
    manifest = _Manifest(key=key, files={name: _record(folder / name) for name in names})
    target = folder / MANIFEST_NAME
    target.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    for path in (*(folder / name for name in names), target, folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _problems(folder: Path, key: str) -> list[str]:
    try:
        document = (folder / MANIFEST_NAME).read_bytes()
        manifest = msgspec.json.decode(document, type=_Manifest)
    except (FileNotFoundError, NotADirectoryError):
        return [f"{folder} has no {MANIFEST_NAME}: it was never prepared, or not to the end"]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return [f"{folder / MANIFEST_NAME} cannot be read: {error}"]
    if manifest.key != key:
        return [f"{folder / MANIFEST_NAME} belongs to {manifest.key}"]
    found = _files(folder) - {MANIFEST_NAME}
    problems = [
        f"{folder / name} is not in the manifest" for name in sorted(found - set(manifest.files))
    ]
    for name, expected in manifest.files.items():
        if name not in found:
            problems.append(f"{folder / name} is missing")
        elif (folder / name).stat().st_size != expected.size:
            problems.append(
                f"{folder / name} has {(folder / name).stat().st_size} bytes instead of {expected.size}"
            )
        elif _record(folder / name) != expected:
            problems.append(f"{folder / name} has changed: its SHA-256 is not {expected.sha256}")
    return problems


def _files(folder: Path) -> set[str]:
    """Everything below a folder that is not a folder, as relative paths."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def _record(path: Path) -> _FileRecord:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return _FileRecord(size=path.stat().st_size, sha256=digest)
