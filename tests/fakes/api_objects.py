"""The state of a fake API server: objects, versions, and server-side apply, good enough to trust.

What a controller can notice is here: one counter of versions for everything, generations that count
changes of the spec, uids, field owners, lists that are maps by their keys, writes that change nothing
and so have no event. What it cannot notice is not: validation, defaults, admission.
"""

import copy
import itertools
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from omnistage_common.cluster.manifests import Manifest, ObjectKey, key_of, owner_uids, uid_of
from omnistage_operator.control.list_keys import entry_key, keys_of_list

__all__ = ["Conflict", "Objects", "collect", "merged", "taken_over", "without"]

_Path = tuple[str, ...]
"""Fields as `f:name`, entries of keyed lists as `k:{...}`: the notation of managedFields."""

_Listener = Callable[[Manifest | None, Manifest | None], None]


class Conflict(Exception):
    """Another manager owns the field."""


class Objects:
    """Objects of one kind."""

    def __init__(self, next_version: Callable[[], int], listener: _Listener) -> None:
        self._next_version = next_version
        self._tell = listener
        self._objects: dict[ObjectKey, Manifest] = {}

    def get(self, key: ObjectKey) -> Manifest | None:
        """The object, None when there is none."""
        return self._objects.get(key)

    def sorted(self) -> list[Manifest]:
        """Every object, by namespace and name."""
        return [self._objects[key] for key in sorted(self._objects)]

    def owned_by(self, uid: str) -> list[Manifest]:
        """The objects that name this owner."""
        return [found for found in self._objects.values() if uid in owner_uids(found)]

    def write(self, wanted: Manifest) -> Manifest:
        """Stores a state; the version moves only when something else does."""
        key = key_of(wanted)
        before = self._objects.get(key)
        after = copy.deepcopy(wanted)
        metadata = after["metadata"]
        if before is None:
            metadata.setdefault("uid", str(uuid.uuid4()))
            metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
            metadata["generation"] = 1
        else:
            for name in ("uid", "creationTimestamp", "generation"):
                if name in before["metadata"]:
                    metadata[name] = before["metadata"][name]
            metadata["resourceVersion"] = before["metadata"]["resourceVersion"]
            if after == before:
                return before
            metadata["generation"] += _spec_of(after) != _spec_of(before)
        metadata["resourceVersion"] = str(self._next_version())
        self._objects[key] = after
        self._tell(before, after)
        return after

    def remove(self, key: ObjectKey) -> Manifest:
        """Takes an object out; its last state."""
        before = self._objects.pop(key)
        last = copy.deepcopy(before)
        last["metadata"]["resourceVersion"] = str(self._next_version())
        self._tell(last, None)
        return before


def merged(
    live: Manifest | None, intent: Manifest, *, manager: str, force: bool, status: bool
) -> Manifest:
    """What server-side apply makes of an object.

    Raises:
        Conflict: Another manager owns a field with another value, and `force` is not set.
    """
    base = copy.deepcopy(live) if live is not None else {"metadata": {}}
    subresource = "status" if status else ""
    wanted = dict(_leaves(_owned_part(intent, status=status), (), ""))
    owners = _owners_of(base)
    mine = (manager, "Apply", subresource)
    for other, paths in owners.items():
        taken = {
            path
            for path in paths & set(wanted)
            if other != mine and _at(base, path) != wanted[path]
        }
        if taken and not force:
            raise Conflict(f"conflict with {other[0]!r}: {sorted('.'.join(p) for p in taken)}")
        owners[other] = paths - taken
    kept = set().union(*(paths for other, paths in owners.items() if other != mine), set(wanted))
    for path in owners.get(mine, set()) - kept:
        _drop(base, path)
    for path, value in wanted.items():
        _put(base, path, value)
    owners[mine] = set(wanted)
    for name in ("apiVersion", "kind"):
        base[name] = intent[name]
    for name in ("name", "namespace"):
        if name in intent["metadata"]:
            base["metadata"][name] = intent["metadata"][name]
    base["metadata"]["managedFields"] = _written(owners)
    return base


def taken_over(
    live: Manifest, path: _Path, value: Any, *, manager: str, subresource: str
) -> Manifest:
    """What a plain update of one field makes of an object: the writer owns it from now on."""
    base = copy.deepcopy(live)
    _put(base, path, value)
    owners = {other: paths - {path} for other, paths in _owners_of(base).items()}
    owners.setdefault((manager, "Update", subresource), set()).add(path)
    base["metadata"]["managedFields"] = _written(owners)
    return base


def without(manifest: Manifest, path: _Path) -> Manifest:
    """The object without one field."""
    base = copy.deepcopy(manifest)
    _drop(base, tuple(f"f:{name}" for name in path))
    return base


def _spec_of(manifest: Manifest) -> Manifest:
    return {name: value for name, value in manifest.items() if name not in {"metadata", "status"}}


def _owned_part(intent: Manifest, *, status: bool) -> Manifest:
    if status:
        return {"status": intent.get("status", {})}
    metadata = {
        name: value
        for name, value in intent["metadata"].items()
        if name in {"labels", "annotations", "ownerReferences", "finalizers"}
    }
    rest = {
        name: value
        for name, value in intent.items()
        if name not in {"apiVersion", "kind", "metadata", "status"}
    }
    return {"metadata": metadata, **rest}


def _leaves(value: Any, path: _Path, around: str) -> Iterator[tuple[_Path, Any]]:
    """Every field that the value sets, with what it is set to."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves_of_field(name, inner, path, around)
    else:
        yield path, value


def _leaves_of_field(
    name: str, inner: Any, path: _Path, around: str
) -> Iterator[tuple[_Path, Any]]:
    here = (*path, f"f:{name}")
    keys = keys_of_list(around, name)
    if isinstance(inner, list) and keys is not None:
        for entry in inner:
            named = dict(zip(keys, entry_key(entry, keys), strict=True))
            yield from _leaves(entry, (*here, f"k:{json.dumps(named, sort_keys=True)}"), name)
    else:
        yield from _leaves(inner, here, name)


def _step(base: Any, step: str, *, make: bool) -> Any:
    """One step down; with `make` what is not there comes into being."""
    kind, _, name = step.partition(":")
    if kind == "f":
        return base.setdefault(name, None) if make else base.get(name)
    wanted = json.loads(name)
    for entry in base:
        if entry_key(entry, tuple(wanted)) == tuple(wanted.values()):
            return entry
    if not make:
        return None
    base.append({field: value for field, value in wanted.items() if value is not None})
    return base[-1]


def _at(base: Manifest, path: _Path) -> Any:
    found: Any = base
    for step in path:
        if found is None:
            return None
        found = _step(found, step, make=False)
    return found


def _put(base: Manifest, path: _Path, value: Any) -> None:
    here: Any = base
    for step, after in itertools.pairwise(path):
        below = _step(here, step, make=True)
        if below is None:
            below = [] if after.startswith("k:") else {}
            here[step[2:]] = below
        here = below
    if path[-1].startswith("f:"):
        here[path[-1][2:]] = copy.deepcopy(value)
    else:
        _step(here, path[-1], make=True)


def _drop(base: Manifest, path: _Path) -> None:
    *above, last = path
    here = _at(base, tuple(above))
    if here is None:
        return
    if last.startswith("f:"):
        if not (above and above[-1].startswith("k:") and last[2:] in json.loads(above[-1][2:])):
            here.pop(last[2:], None)
    else:
        entry = _step(here, last, make=False)
        if entry is not None:
            here.remove(entry)
    if above and _is_bare(here, above[-1]):
        _drop(base, tuple(above))


def _is_bare(value: Any, step: str) -> bool:
    """Nothing but its own key is left of it."""
    if step.startswith("k:"):
        return set(value) <= set(json.loads(step[2:]))
    return not value


def _owners_of(base: Manifest) -> dict[tuple[str, str, str], set[_Path]]:
    return {
        (entry["manager"], entry["operation"], entry.get("subresource", "")): set(
            _paths(entry["fieldsV1"], ())
        )
        for entry in base["metadata"].get("managedFields", [])
    }


def _paths(fields: dict[str, Any], path: _Path) -> Iterator[_Path]:
    for step, inner in fields.items():
        if step == ".":
            yield path
        elif inner:
            yield from _paths(inner, (*path, step))
        else:
            yield (*path, step)


def _written(owners: dict[tuple[str, str, str], set[_Path]]) -> list[dict[str, Any]]:
    entries = []
    for (manager, operation, subresource), paths in sorted(owners.items()):
        fields: dict[str, Any] = {}
        for path in sorted(paths):
            here = fields
            for step in path:
                here = here.setdefault(step, {})
        if fields:
            entry = {"manager": manager, "operation": operation, "fieldsV1": fields}
            entries.append(entry | ({"subresource": subresource} if subresource else {}))
    return entries


def collect(kinds: list[Objects], owner: Manifest) -> None:
    """Deletes what a deleted object owned, and what that owned."""
    for objects in kinds:
        for child in objects.owned_by(uid_of(owner)):
            if objects.get(key_of(child)) is not None:
                objects.remove(key_of(child))
                collect(kinds, child)
