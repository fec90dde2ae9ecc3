"""The cache of one kind: objects by key, by owner and by any index, with the newest state winning.

Two writers feed it. The watch, which sees everything in order, and the executor, which hands in the
answers to its own writes so that the next reconcile sees them without waiting for the watch. Versions
decide between the two: an older state never replaces a newer one, and an answer that comes after the
watch has passed it does not bring a deleted object back.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Final

from omnistage_common.cluster.manifests import (
    UNKNOWN_VERSION,
    Manifest,
    ObjectKey,
    Uid,
    key_of,
    owner_uids,
    version_of,
)

__all__ = ["Change", "IndexRule", "Store"]

IndexRule = Callable[[Manifest], Iterable[Hashable]]
"""The values under which an object is found in an index."""

Change = tuple[Manifest | None, Manifest | None]
"""What was there before, and what is there now."""

_OWNER: Final = "owner"


class Store:
    """Objects of one kind. What comes out is shared: read it, never change it."""

    def __init__(self, indexes: Mapping[str, IndexRule] | None = None) -> None:
        self._rules: dict[str, IndexRule] = {**(indexes or {}), _OWNER: owner_uids}
        self._objects: dict[ObjectKey, Manifest] = {}
        self._indexes: dict[str, dict[Hashable, dict[ObjectKey, None]]] = {
            name: {} for name in self._rules
        }

    def get(self, key: ObjectKey) -> Manifest | None:
        """The object, None when there is none."""
        return self._objects.get(key)

    def all(self) -> Iterable[Manifest]:
        """Every object, in no order; not to be held over an `await`."""
        return self._objects.values()

    def keys(self) -> tuple[ObjectKey, ...]:
        """The key of every object."""
        return tuple(self._objects)

    def in_namespace(self, namespace: str) -> list[Manifest]:
        """Every object of a namespace, by a walk over all; make an index where that is too slow."""
        return [found for key, found in self._objects.items() if key.namespace == namespace]

    def find(self, index: str, value: Hashable) -> list[Manifest]:
        """The objects that an index rule put under this value.

        Raises:
            KeyError: No index has this name.
        """
        return [self._objects[key] for key in self._indexes[index].get(value, ())]

    def owned_by(self, owner: Uid) -> list[Manifest]:
        """The objects that name this owner."""
        return self.find(_OWNER, owner)

    def put(self, manifest: Manifest) -> Change | None:
        """Takes a state of an object in; None when it is no newer than what is here."""
        key = key_of(manifest)
        before = self._objects.get(key)
        if before is not None and not _supersedes(manifest, before):
            return None
        if before is not None:
            self._unindex(key, before)
        self._objects[key] = manifest
        self._index(key, manifest)
        return before, manifest

    def remove(self, manifest: Manifest) -> Change | None:
        """The object was deleted in this state; None when it was gone, or has come anew since."""
        key = key_of(manifest)
        before = self._objects.get(key)
        if before is None or not _supersedes(manifest, before, itself=True):
            return None
        del self._objects[key]
        self._unindex(key, before)
        return before, None

    def replace(
        self, scope: Callable[[ObjectKey], bool], listed: set[ObjectKey], version: int
    ) -> list[Change]:
        """Removes what a full list at this version no longer has.

        Args:
            scope: Which keys the list speaks for.
            listed: What it has.
            version: The version of the list; states newer than it are none of its business.
        """
        gone = [
            found
            for key, found in self._objects.items()
            if key not in listed and scope(key) and version_of(found) <= version
        ]
        return [change for found in gone if (change := self.remove(found)) is not None]

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._objects

    def _index(self, key: ObjectKey, manifest: Manifest) -> None:
        for name, value in self._entries(manifest):
            self._indexes[name].setdefault(value, {})[key] = None

    def _unindex(self, key: ObjectKey, manifest: Manifest) -> None:
        for name, value in self._entries(manifest):
            keys = self._indexes[name].get(value)
            if keys is not None:
                keys.pop(key, None)
                if not keys:
                    del self._indexes[name][value]

    def _entries(self, manifest: Manifest) -> Iterator[tuple[str, Hashable]]:
        for name, rule in self._rules.items():
            for value in rule(manifest):
                yield name, value


def _supersedes(one: Manifest, other: Manifest, *, itself: bool = False) -> bool:
    """Whether `one` is the later state; without numbers to compare, what comes last is."""
    first, second = version_of(one), version_of(other)
    if UNKNOWN_VERSION in (first, second):
        return True
    return first > second or (itself and first == second)
