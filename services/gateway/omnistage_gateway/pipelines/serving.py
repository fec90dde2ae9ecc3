"""Which revision of a pipeline takes new requests at this gateway: a machine without I/O.

A revision is known as long as its plan is there, and routable while every stage of it can be reached
from here. The operator says which one is *current*. New requests go to that as soon as it is routable
here; until then they stay where they went before, so that a rollout loses none. A revision that the
operator drains takes none in any case: its replicas are about to go, even if nothing takes its place
yet. A revision that was left, or whose plan is gone, is in use until its last request has ended.

    event                         what new requests go to
    ----------------------------  -----------------------------------------------------------
    current is routable           current
    current is not (yet)          as before, unless that is drained or forgotten: then nothing
    nothing was served before     nothing, until current is routable
"""

from collections.abc import Collection
from typing import Final

from msgspec import Struct

from omnistage_common.ids import Revision

__all__ = ["MAX_REVISIONS", "Acknowledgement", "Serving"]

MAX_REVISIONS: Final = 16
"""Revisions that an acknowledgement names of each sort, at most."""


class Acknowledgement(Struct, frozen=True, kw_only=True):
    """What a gateway says of a pipeline, so that the operator knows what may go."""

    turn: int = 0
    """How often the current revision has changed, as far as this gateway knows."""
    serving: Revision | None = None
    """The one that new requests go to."""
    routable: tuple[Revision, ...] = ()
    """Those that it reaches all stages of."""
    in_use: tuple[Revision, ...] = ()
    """Those that still have requests, though new ones go elsewhere."""


class Serving:
    """The revisions of one pipeline at one gateway."""

    def __init__(self) -> None:
        self.current: Revision | None = None
        self.serving: Revision | None = None
        self._turn = 0
        self._known: dict[Revision, bool] = {}
        """Revisions whose plan is there -> whether they are routable."""
        self._draining: frozenset[Revision] = frozenset()
        self._busy: set[Revision] = set()

    def learn(self, revision: Revision, *, routable: bool) -> None:
        """A plan is there, or can be reached, or cannot any more."""
        self._known[revision] = routable
        self._decide()

    def forget(self, revision: Revision) -> None:
        """A plan is gone."""
        self._known.pop(revision, None)
        self._decide()

    def direct(
        self, current: Revision | None, *, draining: Collection[Revision] = (), turn: int = 0
    ) -> None:
        """What the operator says, for the how-manieth time."""
        self.current = current
        self._turn = turn
        self._draining = frozenset(draining)
        self._decide()

    def occupy(self, revision: Revision, *, busy: bool) -> None:
        """A revision has requests, or none any more."""
        if busy:
            self._busy.add(revision)
        else:
            self._busy.discard(revision)

    @property
    def acknowledgement(self) -> Acknowledgement:
        """What there is to say; equal unless something has changed."""
        routable = [revision for revision, is_routable in self._known.items() if is_routable]
        return Acknowledgement(
            turn=self._turn,
            serving=self.serving,
            routable=self._listed(routable),
            in_use=self._listed(self._busy - {self.serving}),
        )

    def _listed(self, revisions: Collection[Revision]) -> tuple[Revision, ...]:
        """In order, those first that matter most."""
        first = (self.current, self.serving)
        ordered = sorted(revisions, key=lambda revision: (revision not in first, revision))
        return tuple(sorted(ordered[:MAX_REVISIONS]))

    def _decide(self) -> None:
        if self.current is not None and self._known.get(self.current, False):
            self.serving = self.current
        elif self.serving not in self._known or (
            self.serving in self._draining and self.serving != self.current
        ):
            self.serving = None
