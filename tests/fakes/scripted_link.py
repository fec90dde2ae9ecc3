"""A gateway's link without a replica: a test reads what was sent and says what comes back.

It is the real link but for its connection, so whatever a test says must keep the frame protocol.
"""

from collections.abc import Iterable

from omnistage_common.errors import OmnistageError
from omnistage_common.ids import HostId, Incarnation, ReplicaId, StageName
from omnistage_common.links.frames import (
    Cancel,
    Credit,
    Data,
    End,
    Error,
    FinishReason,
    FromOpener,
    Open,
    Phase,
    Release,
    Status,
    Usage,
)
from omnistage_common.links.replica_link import ReplicaLink
from omnistage_common.payloads import Output
from omnistage_gateway.replicas.endpoints import ReplicaEndpoint

__all__ = ["ScriptedLink"]


class ScriptedLink(ReplicaLink):
    """See the module.

    Args:
        stage: The stage that it is a replica of.
        index: Which of its replicas.
        phase: What the replica says of itself first; None for a link that never came about.
    """

    def __init__(self, stage: str, index: int = 0, *, phase: Phase | None = Phase.READY) -> None:
        super().__init__(
            ReplicaEndpoint(
                stage=StageName(stage), replica=ReplicaId(f"{stage}-{index}"), address="nowhere:0"
            )
        )
        self._counts: dict[int, int] = {}
        if phase is not None:
            self.says_phase(phase)

    @property
    def sent(self) -> list[FromOpener]:
        """All frames that the gateway sent."""
        return list(self._outgoing)

    @property
    def opens(self) -> list[Open]:
        """The requests it was sent."""
        return [frame for frame in self.sent if isinstance(frame, Open)]

    @property
    def closes(self) -> list[Cancel | Release]:
        """The requests that the gateway closed."""
        return [frame for frame in self.sent if isinstance(frame, (Cancel, Release))]

    @property
    def credits(self) -> list[int]:
        """What was granted, in order."""
        return [frame.frames for frame in self.sent if isinstance(frame, Credit)]

    def says_phase(self, phase: Phase) -> None:
        """The replica's phase changes."""
        self._receive(
            Status(
                phase=phase,
                message="",
                incarnation=Incarnation("scripted"),
                host=HostId("here"),
            )
        )

    def says(self, *outputs: Output, request: Open | None = None) -> None:
        """Outputs come, of the last request unless one is named."""
        number = (request or self.opens[-1]).request
        sequence = self._counts.get(number, 0)
        self._counts[number] = sequence + 1
        self._receive(Data(request=number, sequence=sequence, outputs=outputs))

    def ends(
        self,
        *,
        reason: FinishReason = FinishReason.NONE,
        usage: Usage | None = None,
        request: Open | None = None,
    ) -> None:
        """A request ends well, the last one unless one is named."""
        number = (request or self.opens[-1]).request
        self._receive(
            End(
                request=number,
                finish_reason=reason,
                usage=usage or Usage(),
                data_frames=self._counts.get(number, 0),
            )
        )

    def fails(self, error: OmnistageError, *, request: Open | None = None) -> None:
        """A request ends badly, the last one unless one is named."""
        self._receive(Error(request=(request or self.opens[-1]).request, error=error))

    def breaks(self, *, drained: bool = False) -> None:
        """The connection ends."""
        self._fail_all(drained=drained)

    def makes(self, outputs: Iterable[Output]) -> None:
        """All of a request at once: its outputs and its end."""
        self.says(*outputs)
        self.ends()
