"""Where the laboratory keeps what outlives a cluster, and locks for what only one may do at a time.

The cache holds programs and images, each in a place named by a hash of what it is made from; it is
safe to delete whenever no cluster runs. What belongs to one cluster is in its state folder instead.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from omnistage_common.errors import SetupError

__all__ = ["DEFAULT_NAME", "cache_folder", "default_state", "locked", "require_visible"]

DEFAULT_NAME: Final = "laboratory"

_HIDDEN: Final = (Path("/run"), Path("/var/run"), Path("/var/lib"), Path("/var/log"))
"""Folders that a node sees as its own, empty ones."""


def cache_folder() -> Path:
    """`$OMNISTAGE_CACHE/cluster`, or `~/.cache/omnistage/cluster`."""
    cache = os.environ.get("OMNISTAGE_CACHE") or Path.home() / ".cache" / "omnistage"
    return Path(cache).absolute() / "cluster"


def default_state() -> Path:
    """The state folder of the cluster that `up` starts when it is told no other."""
    return cache_folder() / "running" / DEFAULT_NAME


def require_visible(folder: Path) -> None:
    """Raises a `SetupError` when the node could not see a folder of the host."""
    for hidden in _HIDDEN:
        if folder.resolve().is_relative_to(hidden):
            raise SetupError(
                f"{folder} is below {hidden}, which a node of the laboratory has to itself; choose "
                "another place with --state, or for the cache with OMNISTAGE_CACHE"
            )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock, waiting for it; the folder is made when it is not there.

    The lock is one on the folder itself, so nothing is left when the folder is removed. Whoever
    waited for the lock of a folder that was removed meanwhile makes it anew and tries again.
    """
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except (FileExistsError, FileNotFoundError):
            if folder.exists() and not folder.is_dir():
                raise
            continue  # it was removed by who had the lock
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_still(folder, descriptor):
                yield
                return
        finally:
            os.close(descriptor)


def _is_still(folder: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(folder.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
