"""The transfer engines of this process: one per kind at most, started when a peer wants one.

An engine that could not be started is not tried again: what it lacks will not come by itself.
"""

import asyncio
from contextlib import ExitStack

from omnistage_common.errors import SetupError
from omnistage_common.tensors.mooncake import MooncakeEngine, missing_for
from omnistage_common.tensors.regions import RegionWatchers
from omnistage_common.tensors.room import plane_closed
from omnistage_common.tensors.transport import TransportKind

__all__ = ["TransferEngines"]


class TransferEngines:
    """See the module.

    Args:
        host: Where engines of other hosts find those of this one.
        regions: Memory that is registered with them.
    """

    def __init__(self, *, host: str, regions: RegionWatchers) -> None:
        self._host = host
        self._regions = regions
        self._engines: dict[TransportKind, MooncakeEngine] = {}
        self._failed: dict[TransportKind, str] = {}
        self._starting = asyncio.Lock()
        self._closed = False

    async def get(self, kind: TransportKind) -> MooncakeEngine:
        """The engine of a kind, running.

        Raises:
            SetupError: There is none, and why.
            Draining: The plane is closed.
        """
        async with self._starting:
            engine = self._engines.get(kind)
            if engine is not None:
                return engine
            if self._closed:
                raise plane_closed()
            why = self._failed.get(kind) or missing_for(kind)
            if not why:
                try:
                    return await self._started(kind)
                except SetupError as error:
                    why = self._failed[kind] = error.message
        raise SetupError(why)

    def close(self) -> None:
        """Ends them; returns at once. Idempotent."""
        self._closed = True
        for engine in self._engines.values():
            engine.close()
        self._engines.clear()

    async def _started(self, kind: TransportKind) -> MooncakeEngine:
        engine = MooncakeEngine(kind, self._host)
        with ExitStack() as failed:
            failed.callback(engine.close)
            await engine.start()
            if self._closed:
                raise plane_closed()
            # RDMA pins what it registers, TCP keeps a note of it.
            self._regions.watch(engine.register, whole=kind is TransportKind.RDMA)
            failed.pop_all()
        self._engines[kind] = engine
        return engine
