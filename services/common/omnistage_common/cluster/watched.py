"""What a controller needs of a cache: a store, and word of its changes.

The informer that fills it from the API server is one implementation; a list of manifests in a test is
another. Controllers and planners know this and nothing more.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from omnistage_common.cluster.kinds import ResourceKind
from omnistage_common.cluster.manifests import Manifest
from omnistage_common.cluster.store import Store

__all__ = ["Listener", "Watched"]

Listener: TypeAlias = Callable[[Manifest | None, Manifest | None], None]
"""Called with the state before and the state after; None for not being there. Must not block."""


class Watched(Protocol):
    """A kind whose objects are at hand and whose changes are told."""

    @property
    def kind(self) -> ResourceKind:
        """The kind of the objects."""

    @property
    def store(self) -> Store:
        """The objects."""

    def on_change(self, listener: Listener) -> None:
        """Tells this listener of every change from now on."""
