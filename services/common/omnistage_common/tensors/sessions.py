"""The transfer engines of this process: one per kind at most, started when a peer wants one.

An engine that could not be started is not tried again: what it lacks will not come by itself. Nor is
memory of a device that an engine did not take, which says nothing about the host's.
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack

import structlog

from omnistage_common.errors import SetupError
from omnistage_common.payloads import DeviceMemory
from omnistage_common.tensors.mooncake import MooncakeEngine, missing_for
from omnistage_common.tensors.regions import RegionWatchers
from omnistage_common.tensors.room import plane_closed
from omnistage_common.tensors.transport import TransportKind

__all__ = ["TransferEngines"]

_log = structlog.get_logger()

_DeviceKey = tuple[TransportKind, int]
"""An engine, and the address of memory that it may know."""
_Undo = Callable[[], None]


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
        self._devices: dict[_DeviceKey, _Undo] = {}
        self._refused: dict[_DeviceKey, str] = {}
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

    async def get_for(self, kind: TransportKind, memory: DeviceMemory) -> MooncakeEngine:
        """The engine of a kind, running, with memory of a device registered.

        Raises:
            SetupError: There is none, or it does not take this memory, and why.
            Draining: The plane is closed.
        """
        key = kind, memory.address
        if key in self._refused:
            raise SetupError(self._refused[key])
        if kind is not TransportKind.RDMA and not memory.on_host:
            raise self._refuse(key, f"memory of {memory.device} can be read by RDMA only")
        engine = await self.get(kind)
        if key not in self._devices:
            try:
                self._devices[key] = engine.register(memory.address, memory.size)
            except SetupError as refused:
                raise self._refuse(key, f"{memory.device}: {refused.message}") from refused
        return engine

    def close(self) -> None:
        """Ends them; returns at once. Idempotent."""
        self._closed = True
        for unregister in self._devices.values():
            unregister()
        self._devices.clear()
        for engine in self._engines.values():
            engine.close()
        self._engines.clear()

    def _refuse(self, key: _DeviceKey, why: str) -> SetupError:
        self._refused[key] = why
        _log.warning("device memory is not read directly", transport=key[0].value, why=why)
        return SetupError(why)

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
