"""The control groups of a cluster: one named group in every hierarchy, holding all its processes.

Two clusters on one machine must not share the group that a kubelet rules over, or each would kill
the other's pods as orphans. The group also says what the whole cluster uses. Works with control
groups of version 1, where every controller has its own hierarchy, and version 2, where there is one.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["enter", "group_name", "leftovers", "memory_bytes", "remove", "sweep"]

_ROOT: Final = Path("/sys/fs/cgroup")
_SERVERS: Final = "servers"
"""Child that holds the servers: in version 2 a group with children has no processes of its own."""


def group_name(identity: str) -> str:
    """The group of a cluster, relative to the root of each hierarchy."""
    return f"omnistage-{identity}"


def enter(identity: str) -> None:
    """Makes the groups and moves this process into them; its children will be there too."""
    for hierarchy in _hierarchies():
        group = hierarchy / group_name(identity)
        for folder in (group, group / _SERVERS):
            folder.mkdir(exist_ok=True)
            _inherit_cpus(folder)
        (group / _SERVERS / "cgroup.procs").write_text("0", encoding="ascii")


def leftovers(identity: str) -> list[Path]:
    """The groups of a cluster that are there."""
    groups = (hierarchy / group_name(identity) for hierarchy in _hierarchies())
    return [group for group in groups if group.exists()]


def remove(identity: str) -> None:
    """Removes the groups of a cluster, whose processes are all gone."""
    for group in leftovers(identity):
        _remove(group)


def sweep() -> None:
    """Removes the groups of clusters that died; hold the lock under which nodes enter theirs."""
    for hierarchy in _hierarchies():
        for group in hierarchy.glob(group_name("*")):
            members = group / _SERVERS / "cgroup.procs"
            if not members.exists() or not members.read_text(encoding="ascii").strip():
                _remove(group)


def memory_bytes(identity: str) -> int | None:
    """Memory of the servers that cannot be given back (page cache left out); None when unknown."""
    for group, key in ((_ROOT / "memory", "total_rss"), (_ROOT, "anon")):
        statistics = group / group_name(identity) / _SERVERS / "memory.stat"
        if statistics.exists():
            lines = statistics.read_text(encoding="ascii").splitlines()
            return int(dict(line.split() for line in lines)[key])
    return None


def _hierarchies() -> Iterator[Path]:
    if (_ROOT / "cgroup.controllers").exists():
        yield _ROOT
        return
    for folder in sorted(_ROOT.iterdir()):
        # Version 2 mounted beside version 1 controls nothing that we use.
        second = (folder / "cgroup.controllers").exists()
        if (folder / "cgroup.procs").exists() and not folder.is_symlink() and not second:
            yield folder


def _remove(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        with suppress(FileNotFoundError):
            Path(folder).rmdir()


def _inherit_cpus(folder: Path) -> None:
    for file in ("cpuset.cpus", "cpuset.mems"):
        if (folder / file).exists() and not (folder / file).read_text(encoding="ascii").strip():
            inherited = (folder.parent / file).read_text(encoding="ascii")
            (folder / file).write_text(inherited, encoding="ascii")
