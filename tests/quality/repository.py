"""What the quality gates read: the files of the repository, as git and Python's parser see them.

A file counts when git tracks it or would: a forgotten build output is nobody's concern, a new
module is, before it is committed too.
"""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["ROOT", "files", "python_files", "syntax", "tracked_files"]

ROOT: Final = Path(__file__).parents[2]


def _git_files(*options: str) -> list[Path]:
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", *options]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    return sorted(Path(name.decode()) for name in listing.split(b"\0") if name)


@cache
def tracked_files() -> tuple[Path, ...]:
    """Paths under version control, relative to `ROOT`."""
    return tuple(_git_files("--cached"))


@cache
def files() -> tuple[Path, ...]:
    """Paths under version control or not ignored by it, relative to `ROOT`; only those there."""
    listed = _git_files("--cached", "--others", "--exclude-standard")
    return tuple(path for path in listed if (ROOT / path).is_file())


def python_files(*tops: str) -> Iterator[Path]:
    """Python sources under these folders, or all; generated ones are ignored by git."""
    for path in files():
        if path.suffix == ".py" and (not tops or path.parts[0] in tops):
            yield path


@cache
def syntax(path: Path) -> ast.Module:
    """The parsed source of a file."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))
