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
from omnistage_stage.service.lifecycle import Lifecycle
from omnistage_stage.service.metrics import StageMetrics
from omnistage_stage.service.session import Session

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
    metrics: StageMetrics
    incarnation: Incarnation
    host: HostId
    suspect: asyncio.Event
    """Set when the engine failed a request, so that somebody probes it."""

    async def serve(self, session: Session, place: Place) -> EngineResult:
        """Computes one request in its place.

        Raises:
            OmnistageError: Whatever ended it, as one of the tree.
        """
        await place.taken()
        request = await session.fetch_inputs()
        with self._engine_errors(session.frame.request_id):
            return await self.engine.run(request, session)

    async def load(self) -> None:
        """Has the engine load its weights.

        Raises:
            OmnistageError: It could not.
        """
        with self._engine_errors(RequestId("load")):
            await self.engine.load()

    async def probe(self) -> None:
        """Has the engine compute something small for real.

        Raises:
            OmnistageError: It could not.
        """
        with self._engine_errors(RequestId("probe")):
            await self.engine.probe()

    @contextmanager
    def _engine_errors(self, request_id: RequestId) -> Iterator[None]:
        """The boundary behind which an engine, anybody's code, may raise what it likes."""
        try:
            yield
        except OmnistageError as error:
            if isinstance(error, EngineFailed):
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
