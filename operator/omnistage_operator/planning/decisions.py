"""What a planner decides: objects that should be there, objects that should go, and what to say.

Values only; whoever executes them knows the cluster. Objects are JSON values as a cluster writes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Decision", "Json", "ObjectReference", "reference_to"]

Json = Mapping[str, Any]
"""An object as a cluster writes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectReference:
    """One object of a cluster."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    """Of the object that was seen: another one of that name stays."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What follows from what was observed."""

    apply: tuple[Json, ...] = ()
    """Objects with the fields that they should have, in order."""
    delete: tuple[ObjectReference, ...] = ()
    """Objects that go, after the others were applied."""
    status: Json | None = None
    """Status of the object that was planned for; None to leave it as it is."""


def reference_to(seen: Json) -> ObjectReference:
    """The reference to an object that was seen."""
    metadata = seen["metadata"]
    return ObjectReference(
        api_version=seen["apiVersion"],
        kind=seen["kind"],
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata["uid"],
    )
