"""One replica: an engine, its bounds, its life and its tensors, in one value that the doors share."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from omnistage_common.errors import EngineFailed, OmnistageError, truncated
from omnistage_common.ids import HostId, Incarnation, ReplicaId, RequestId
from omnistage_common.pipeline.plan import StagePlan
from omnistage_common.tensors import TensorPlane
from omnistage_stage.engines.protocol import Engine, EngineResult
from omnistage_stage.service.admission import Admission, Place
from omnistage_stage.service.devices import attach_device
from omnistage_stage.service.intake import Intake
from omnistage_stage.service.lifecycle import Lifecycle
from omnistage_stage.service.metrics import StageMetrics
from omnistage_stage.service.peers import Peers
from omnistage_stage.service.session import Session
from omnistage_stage.service.subscriptions import Outlets

__all__ = ["Replica"]

_log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True, slots=True)
class Replica:
    """What every link of this process works on."""

    id: ReplicaId
    plan: StagePlan
    engine: Engine
    admission: Admission
    lifecycle: Lifecycle
    plane: TensorPlane
    outlets: Outlets
    peers: Peers
    metrics: StageMetrics
    incarnation: Incarnation
    host: HostId
    suspect: asyncio.Event
    """Set when the engine failed a request, so that somebody probes it."""

    async def serve(self, session: Session, place: Place, intake: Intake | None) -> EngineResult:
        """Computes one request in its place.

        Args:
            session: The request.
            place: Its place in the engine.
            intake: What arrives for it while it runs; None for nothing.

        Raises:
            OmnistageError: Whatever ended it, as one of the tree.
        """
        await place.taken()
        self.metrics.placed(session.begin())
        request = await session.fetch_inputs(intake.streams if intake is not None else {})
        with self._engine_errors(session.frame.request_id, intake):
            return await self.engine.run(request, session)

    async def load(self) -> None:
        """Has the engine load its weights, and joins its device to the tensor plane.

        Raises:
            OmnistageError: It could not.
        """
        with self._engine_errors(RequestId("load")):
            await self.engine.load()
            attach_device(self.engine, self.plane, self.plan)

    async def probe(self) -> None:
        """Has the engine compute something small for real.

        Raises:
            OmnistageError: It could not.
        """
        with self._engine_errors(RequestId("probe")):
            await self.engine.probe()

    @contextmanager
    def _engine_errors(self, request_id: RequestId, intake: Intake | None = None) -> Iterator[None]:
        """The boundary behind which an engine, anybody's code, may raise what it likes."""
        try:
            yield
        except OmnistageError as error:
            ours = intake is None or not intake.raised(error)
            if ours and isinstance(error, EngineFailed):
                self.suspect.set()
            raise
        except asyncio.CancelledError as cancelled:
            if _is_wanted():
                raise self._failed(request_id, cancelled) from cancelled
            raise
        except Exception as failure:
            raise self._failed(request_id, failure) from failure

    def _failed(self, request_id: RequestId, failure: BaseException) -> EngineFailed:
        self.suspect.set()
        _log.exception("engine raised", request_id=request_id)
        return EngineFailed(truncated(f"stage {self.plan.name}: the engine raised {failure!r}"))


def _is_wanted() -> bool:
    """Whether nobody cancelled this task, so that a `CancelledError` in it is the engine's own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() == 0
