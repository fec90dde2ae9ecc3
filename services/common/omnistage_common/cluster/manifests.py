"""Kubernetes objects as they travel: plain JSON objects, read through a few named functions.

The operator holds thousands of them, so they stay what the decoder made of them: no classes, no
copies. Whoever takes one out of a cache reads it and never changes it.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NewType, TypeAlias

import msgspec

__all__ = [
    "UNKNOWN_VERSION",
    "Manifest",
    "ObjectKey",
    "OwnerReference",
    "Uid",
    "annotations_of",
    "controller_of",
    "is_deleted",
    "key_of",
    "labels_of",
    "owner_uids",
    "uid_of",
    "version_number",
    "version_of",
]

Manifest: TypeAlias = dict[str, Any]
"""One object as JSON; never changed once it is shared."""

Uid = NewType("Uid", str)
"""Identity of an object over its whole life; a name can come again, a uid cannot."""

UNKNOWN_VERSION: Final = -1
"""Stands for a resource version that is missing or no number."""


class ObjectKey(NamedTuple):
    """Where an object of a kind is found."""

    namespace: str
    """Empty for a kind without namespaces."""
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class OwnerReference(msgspec.Struct, frozen=True, kw_only=True):
    """Who controls an object."""

    api_version: str
    kind: str
    name: str
    uid: Uid


def key_of(manifest: Manifest) -> ObjectKey:
    """Where the object is found."""
    metadata = manifest["metadata"]
    return ObjectKey(metadata.get("namespace", ""), metadata["name"])


def uid_of(manifest: Manifest) -> Uid:
    """The identity that the API server gave the object; empty for one that was never written."""
    return Uid(manifest["metadata"].get("uid", ""))


def version_of(manifest: Manifest) -> int:
    """The resource version as a number, so that two states of an object can be put in order."""
    return version_number(manifest["metadata"].get("resourceVersion", ""))


def version_number(version: str) -> int:
    """A resource version as a number, `UNKNOWN_VERSION` when it is none."""
    return int(version) if version.isascii() and version.isdigit() else UNKNOWN_VERSION


def labels_of(manifest: Manifest) -> Mapping[str, str]:
    """The object's labels; none is an empty mapping."""
    return manifest["metadata"].get("labels") or {}


def annotations_of(manifest: Manifest) -> Mapping[str, str]:
    """The object's annotations; none is an empty mapping."""
    return manifest["metadata"].get("annotations") or {}


def is_deleted(manifest: Manifest) -> bool:
    """Whether the object's deletion has begun: nothing but cleaning up is due then."""
    return "deletionTimestamp" in manifest["metadata"]


def controller_of(manifest: Manifest) -> OwnerReference | None:
    """The one owner that controls the object."""
    for owner in manifest["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return OwnerReference(
                api_version=owner["apiVersion"],
                kind=owner["kind"],
                name=owner["name"],
                uid=Uid(owner["uid"]),
            )
    return None


def owner_uids(manifest: Manifest) -> tuple[Uid, ...]:
    """Identities of all owners, controlling or not."""
    return tuple(Uid(owner["uid"]) for owner in manifest["metadata"].get("ownerReferences") or ())
