"""A scripted link whose connection stands as long as its task: for what starts and ends links."""

import asyncio

from fakes.scripted_link import ScriptedLink
from omnistage_common.links.frames import Phase
from omnistage_gateway.replicas.endpoints import ReplicaEndpoint

__all__ = ["IdleLink", "Links", "endpoint"]


def endpoint(name: str, stage: str = "thinker", *, life: str = "") -> ReplicaEndpoint:
    """Where a replica would be."""
    return ReplicaEndpoint(stage=stage, replica=name, address=f"{name}:1", life=life)  # type: ignore[arg-type]


class IdleLink(ScriptedLink):
    """See the module.

    Attributes:
        ended: Whether its task has ended.
    """

    def __init__(self, where: ReplicaEndpoint, phase: Phase | None = None) -> None:
        super().__init__(where.stage, phase=phase)
        self.endpoint = where
        self.ended = False

    async def run(self) -> None:
        """Stands until cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True
            self._fail_all(drained=False)


class Links:
    """Makes the links of a fleet and remembers all of them.

    Args:
        phase: What every replica says of itself at once; None for nothing.
    """

    def __init__(self, phase: Phase | None = Phase.READY) -> None:
        self.made: list[IdleLink] = []
        self._phase = phase

    def __call__(self, where: ReplicaEndpoint) -> IdleLink:
        """Makes one."""
        link = IdleLink(where, self._phase)
        self.made.append(link)
        return link

    def __getitem__(self, name: str) -> IdleLink:
        """The last one that was made to a replica."""
        return next(link for link in reversed(self.made) if link.endpoint.replica == name)

    def ended(self, name: str) -> bool:
        """Whether the last link to a replica has ended."""
        return self[name].ended
