"""Which lists of Kubernetes objects are maps in truth, and what tells their entries apart.

These are the keys of the published schemas (`x-kubernetes-list-map-keys`), for the kinds that the
operator writes. Every other list is one value: whoever changes an entry changes the list.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["entry_key", "keys_of_list"]

_BY_NAME: Final[Mapping[str, tuple[str, ...]]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "resourceClaims": ("name",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""Field -> keys, wherever the field is."""

_BY_PLACE: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("containers", "ports"): ("containerPort", "protocol"),
    ("initContainers", "ports"): ("containerPort", "protocol"),
    ("resources", "claims"): ("name",),
    ("spec", "ports"): ("port", "protocol"),
    ("status", "gateways"): ("name",),
    ("status", "revisions"): ("revision",),
    ("status", "stages"): ("name",),
}
"""(Field around it, field) -> keys, where the name alone does not say."""

_DEFAULTS: Final[Mapping[str, str]] = {"protocol": "TCP"}
"""What the API server puts where an entry leaves its key out."""


def keys_of_list(around: str, field: str) -> tuple[str, ...] | None:
    """What tells the entries of this list apart; None when it is one value.

    Args:
        around: Name of the field that the list's field is in; entries of lists are not counted.
        field: Name of the list's field.
    """
    return _BY_PLACE.get((around, field)) or _BY_NAME.get(field)


def entry_key(entry: Any, keys: Sequence[str]) -> tuple[Any, ...]:
    """The values that tell this entry from the others of its list."""
    if not isinstance(entry, dict):
        return (entry,)
    return tuple(entry.get(name, _DEFAULTS.get(name)) for name in keys)
