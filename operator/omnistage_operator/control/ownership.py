"""Who owns a field of an object, from the field sets that the API server keeps.

Needed where two owners meet: `replicas` of a stage is the planner's until a person or an autoscaler
sets it. The cache keeps field sets only for kinds that ask for them, as they are long.
"""

from typing import Any

import msgspec

from omnistage_common.cluster.manifests import Manifest

__all__ = ["FieldManager", "managers_of"]


class FieldManager(msgspec.Struct, frozen=True, kw_only=True):
    """A writer as the API server remembers it."""

    name: str
    operation: str
    """`Apply` or `Update`."""
    subresource: str = ""
    """`scale` for an autoscaler or `kubectl scale`."""


def managers_of(live: Manifest, *path: str) -> tuple[FieldManager, ...]:
    """The managers that own the field at this path, e.g. `managers_of(stage, "spec", "replicas")`.

    Entries of lists with keys are not looked into. Without field sets in the object nobody owns it.
    """
    return tuple(
        FieldManager(
            name=entry.get("manager", ""),
            operation=entry.get("operation", ""),
            subresource=entry.get("subresource", ""),
        )
        for entry in live["metadata"].get("managedFields") or ()
        if _owns(entry.get("fieldsV1") or {}, path)
    )


def _owns(fields: dict[str, Any], path: tuple[str, ...]) -> bool:
    for name in path:
        found = fields.get(f"f:{name}")
        if found is None:
            return False
        fields = found
    return True
