"""Label and field selectors of the fake API server."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from omnistage_common.cluster.manifests import Manifest, key_of, labels_of

__all__ = ["Selector"]

_REQUIREMENT = re.compile(
    r"\s*(!?)([\w./-]+)\s*(?:(==|=|!=)\s*([\w.-]*)|\s((?:not)?in)\s*\(([^)]*)\))?\s*(?:,|$)"
)


@dataclass(frozen=True, kw_only=True)
class Selector:
    """Which objects a list or a watch is about."""

    namespace: str
    labels: str
    fields: str

    @classmethod
    def of(cls, namespace: str, query: Mapping[str, str]) -> Self:
        """What the parameters of a request select."""
        return cls(
            namespace=namespace,
            labels=query.get("labelSelector", ""),
            fields=query.get("fieldSelector", ""),
        )

    def takes(self, manifest: Manifest) -> bool:
        """Whether the object is meant."""
        return (
            self.namespace in {"", key_of(manifest).namespace}
            and all(
                _holds(labels_of(manifest), *found.groups())
                for found in _REQUIREMENT.finditer(self.labels)
            )
            and all(_field_holds(manifest, term) for term in self.fields.split(",") if term)
        )


def _holds(
    labels: Mapping[str, str],
    negated: str,
    name: str,
    operator: str | None,
    value: str | None,
    choice: str | None,
    values: str | None,
) -> bool:
    found = labels.get(name)
    if operator is not None:
        return (found == value) is (operator != "!=")
    if choice is not None:
        wanted = {part.strip() for part in (values or "").split(",")}
        return (found in wanted) is (choice == "in")
    return (found is None) is bool(negated)


def _field_holds(manifest: Manifest, term: str) -> bool:
    path, operator, value = re.split(r"(!=|==|=)", term, maxsplit=1)
    found: Any = manifest
    for name in path.split("."):
        found = found.get(name, {}) if isinstance(found, dict) else {}
    return (str(found or "") == value) is (operator != "!=")
