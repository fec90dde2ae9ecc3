"""A follower: a process of a replica that spans nodes, and not the one that serves.

It answers health and metrics and nothing else; its engine computes for the leader. Whether the replica
is ready is for the leader to say, which waits for every follower. A stop signal does not end it: a
leader that drains needs it for its last requests. It ends when the leader has gone, and without a
stop signal that is a failure, for then the gang starts anew.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import grpc.aio
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from omnistage_common.channels import SERVER_OPTIONS
from omnistage_common.errors import EngineFailed, SetupError
from omnistage_common.pipeline.assignments import Assignment
from omnistage_common.signals import StopSignals
from omnistage_common.telemetry import new_registry
from omnistage_stage.engines.protocol import GangMember
from omnistage_stage.engines.registry import make_engine
from omnistage_stage.engines.specs import spec_of
from omnistage_stage.server import LIVENESS, bind, serve_metrics
from omnistage_stage.settings import StageSettings

__all__ = ["Follower"]

_log = structlog.get_logger()

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_AFTER_DRAIN_S: Final = 5.0
"""For the leader to end, once its drain is over."""


class Follower:
    """One process of a gang."""

    def __init__(self, settings: StageSettings, assignment: Assignment) -> None:
        """Makes the engine without loading anything.

        Raises:
            SetupError: The engine or its arguments are wrong, or it cannot span nodes.
        """
        self._settings = settings
        self._patience_s = assignment.drain + _AFTER_DRAIN_S
        engine = make_engine(assignment.stage.engine, spec_of(assignment, settings.gang))
        if not isinstance(engine, GangMember):
            raise SetupError(f"engine {assignment.stage.engine} has no part for followers")
        self._engine = engine

    async def run(self) -> None:
        """Follows until the leader has gone.

        Raises:
            SetupError: The leader is not reached.
            EngineFailed: The leader has gone, and nobody has said that this one is to go too.
        """
        with StopSignals() as stop:
            async with self._listening():
                following = asyncio.create_task(self._engine.follow(), name="follow")
                stopping = asyncio.create_task(stop.wait(), name="stop signal")
                tasks = (following, stopping)
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    if following.done():
                        await following
                        raise EngineFailed("the leader has gone; the gang starts anew")
                    _log.info("told to stop; it goes when the leader has gone")
                    await asyncio.wait((following,), timeout=self._patience_s)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        for service in ("", LIVENESS):
            await servicer.set(service, _SERVING)
        bind(server, self._settings.listen)
        metrics = serve_metrics(self._settings.metrics, new_registry())
        await server.start()
        _log.info("listening", address=str(self._settings.listen))
        try:
            yield
        finally:
            await server.stop(None)
            metrics()
