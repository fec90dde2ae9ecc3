"""The replicas of one stage, and the choice among them: least outstanding work.

Only a replica that said READY on an unbroken link is chosen. Ties go round, so that idle replicas
share. With none, the error says why for each, since that is what an operator asks next. Replicas come
and go while requests run: one that goes is not chosen any more, and keeps what it has. Whoever waits
for the stage to be ready, or not to be, is told.
"""

from collections.abc import Callable, Iterable

from omnistage_common.errors import StageUnavailable
from omnistage_common.ids import StageName
from omnistage_common.links.frames import Phase
from omnistage_common.links.replica_link import ReplicaLink

__all__ = ["StagePool"]


class StagePool:
    """Replicas of one stage, whichever pipelines use it.

    Args:
        stage: Which.
        links: To its replicas.
        max_running: Requests that one of them runs at once.
    """

    def __init__(
        self, stage: StageName, links: Iterable[ReplicaLink] = (), *, max_running: int = 1
    ) -> None:
        self.stage = stage
        self.links = tuple(links)
        """Those that take requests."""
        self.leaving: tuple[ReplicaLink, ...] = ()
        """Those that take none any more and still have some."""
        self._max_running = max_running
        self._turn = 0
        self._watchers: list[Callable[[], None]] = []
        self._told = self.ready

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
        links = self.links
        count = len(links)
        self._turn += 1
        best: ReplicaLink | None = None
        for offset in range(count):
            link = links[(self._turn + offset) % count]
            if link.phase is Phase.READY and (best is None or link.outstanding < best.outstanding):
                best = link
        if best is None:
            raise self._unavailable()
        return best

    def replace(self, links: Iterable[ReplicaLink], *, leaving: Iterable[ReplicaLink] = ()) -> None:
        """Takes other links from now on.

        Args:
            links: Those that take requests.
            leaving: Those that take none any more and still have some.
        """
        self.links = tuple(links)
        self.leaving = tuple(leaving)
        self.refresh()

    def refresh(self) -> None:
        """Looks at the replicas again, as one of them is in another phase now."""
        ready = self.ready
        if ready is not self._told:
            self._told = ready
            for watcher in tuple(self._watchers):
                watcher()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Has a watcher called whenever `ready` has changed."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Has it called no more."""
        self._watchers.remove(watcher)

    def _unavailable(self) -> StageUnavailable:
        states = ", ".join(
            f"{link.endpoint.replica} is {link.phase.value if link.phase else 'not connected'}"
            for link in self.links
        )
        return StageUnavailable(
            f"no replica of stage {self.stage} is ready: {states or 'it has none'}; try again soon"
        )
