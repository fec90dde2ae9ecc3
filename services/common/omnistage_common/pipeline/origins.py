"""Keeps, for each value of a plan, which layer it came from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from omnistage_common.pipeline.plan import Origin

__all__ = ["OriginLog", "origin_of"]

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, kw_only=True, slots=True)
class OriginLog:
    """Decides between layers, and notes which one won."""

    origins: dict[str, Origin] = field(default_factory=dict)
    """Path of a value in the plan -> where it came from."""

    def note(self, path: str, origin: Origin) -> None:
        """Notes where a value came from."""
        self.origins[path] = origin

    def last(self, path: str, candidates: Iterable[tuple[Origin, ValueT | None]]) -> ValueT:
        """The value of the last layer that has one; the first layer must."""
        origin, value = [(each, found) for each, found in candidates if found is not None][-1]
        self.note(path, origin)
        return value

    def merged(
        self, path: str, layers: Iterable[tuple[Origin, Mapping[str, ValueT]]]
    ) -> dict[str, ValueT]:
        """All keys of all layers, each with the value of the last layer that has it."""
        found: dict[str, ValueT] = {}
        for origin, values in layers:
            for key, value in values.items():
                found[key] = value
                self.note(f"{path}.{key}", origin)
        return found


def origin_of(origins: Mapping[str, Origin], path: str) -> Origin | None:
    """Where a value came from: its own note, or that of the nearest value around it."""
    while path:
        if path in origins:
            return origins[path]
        path = path.rpartition(".")[0]
    return None
