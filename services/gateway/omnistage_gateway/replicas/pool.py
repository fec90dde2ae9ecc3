"""The replicas of one stage, and the choice among them: least outstanding work.

Only a replica that said READY on an unbroken link is chosen. Ties go round, so that idle replicas
share. With none, the error says why for each, since that is what an operator asks next.
"""

from collections.abc import Iterable

from omnistage_common.errors import StageUnavailable
from omnistage_common.ids import StageName
from omnistage_common.links.frames import Phase
from omnistage_common.links.replica_link import ReplicaLink

__all__ = ["StagePool"]


class StagePool:
    """Replicas of one stage.

    Args:
        stage: Which.
        links: To its replicas.
        max_running: Requests that one of them runs at once.
    """

    def __init__(
        self, stage: StageName, links: Iterable[ReplicaLink], *, max_running: int = 1
    ) -> None:
        self.stage = stage
        self.links = tuple(links)
        self._max_running = max_running
        self._turn = 0

    @property
    def ready(self) -> bool:
        """Whether a request could be served now."""
        return any(link.phase is Phase.READY for link in self.links)

    @property
    def load(self) -> float:
        """Outstanding requests of the least loaded ready replica over those it runs at once."""
        outstanding = [link.outstanding for link in self.links if link.phase is Phase.READY]
        return min(outstanding, default=0) / self._max_running

    def check_ready(self) -> None:
        """Returns when a request could be served now.

        Raises:
            StageUnavailable: No replica is ready.
        """
        if not self.ready:
            raise self._unavailable()

    def choose(self) -> ReplicaLink:
        """The ready replica with the least outstanding work.

        Raises:
            StageUnavailable: None is ready.
        """
        count = len(self.links)
        self._turn += 1
        best: ReplicaLink | None = None
        for offset in range(count):
            link = self.links[(self._turn + offset) % count]
            if link.phase is Phase.READY and (best is None or link.outstanding < best.outstanding):
                best = link
        if best is None:
            raise self._unavailable()
        return best

    def _unavailable(self) -> StageUnavailable:
        states = ", ".join(
            f"{link.endpoint.replica} is {link.phase.value if link.phase else 'not connected'}"
            for link in self.links
        )
        return StageUnavailable(
            f"no replica of stage {self.stage} is ready: {states or 'it has none'}; try again soon"
        )
