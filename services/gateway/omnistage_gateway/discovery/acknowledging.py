"""Says in the status of each pipeline what this gateway does with it, and keeps that true.

What is to be said comes from the catalog, what stands there from the API server. Written is only what
differs, and never more than one write of a pipeline at a time: what changes meanwhile is written
afterwards, as it is by then. A write that fails is tried again, later and later; until then the
operator knows an older state, which costs no request.
"""

import asyncio
from functools import partial
from typing import Final

import structlog

from omnistage_common.errors import OmnistageError
from omnistage_gateway.discovery.cluster_door import Cluster
from omnistage_gateway.pipelines.catalog import Catalog
from omnistage_gateway.pipelines.pipeline import PipelineKey
from omnistage_gateway.pipelines.serving import Acknowledgement

__all__ = ["Acknowledger", "shown"]

_log = structlog.get_logger()

AT_ONCE: Final = 8
"""Writes under way."""
FIRST_RETRY: Final = 0.2
LAST_RETRY: Final = 30.0
"""Seconds until a write that failed is tried again."""
GOODBYE: Final = 5.0
"""Seconds that taking everything back may take; what is left is of a gateway that is no more."""


class _Entry:
    """What is known of our part of one pipeline's status."""

    def __init__(self, uid: str, stands: Acknowledgement | None) -> None:
        self.uid = uid
        self.stands = stands
        """What was read, or written last; None for nothing."""
        self.sure = True
        """Whether it was read since it was written."""
        self.lost = False
        """Whether a write failed, so that nobody knows what stands there."""
        self.pause = FIRST_RETRY


class Acknowledger:
    """See the module.

    Args:
        cluster: The API server.
        catalog: Knows what is to be said.
        gateway: Name of this gateway's pod.
    """

    def __init__(self, cluster: Cluster, catalog: Catalog, gateway: str) -> None:
        self._cluster = cluster
        self._catalog = catalog
        self._gateway = gateway
        self._entries: dict[PipelineKey, _Entry] = {}
        self._due: dict[PipelineKey, None] = {}
        """Pipelines to look at, in order, each once."""
        self._news = asyncio.Event()

    def seen(self, key: PipelineKey, uid: str, stands: Acknowledgement | None) -> None:
        """What the API server holds of ours."""
        entry = self._entries.get(key)
        if entry is None or entry.uid != uid:
            self._entries[key] = _Entry(uid, stands)
        elif entry.stands == stands:
            entry.sure, entry.lost = True, False
        elif entry.sure:
            # Somebody else has changed it. What is seen before our own write is older than that.
            entry.stands = stands
        self.look(key)

    def gone(self, key: PipelineKey) -> None:
        """The pipeline is no more."""
        self._entries.pop(key, None)

    def look(self, key: PipelineKey) -> None:
        """There may be something new to say of a pipeline."""
        self._due[key] = None
        self._news.set()

    async def run(self) -> None:
        """Writes what there is to say, until cancelled."""
        free = asyncio.Semaphore(AT_ONCE)
        writing: set[PipelineKey] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                await self._news.wait()
                self._news.clear()
                for key in [key for key in self._due if key not in writing]:
                    await free.acquire()
                    del self._due[key]
                    writing.add(key)
                    task = group.create_task(self._write(key))
                    task.add_done_callback(partial(self._written, key, writing, free))

    def _written(
        self,
        key: PipelineKey,
        writing: set[PipelineKey],
        free: asyncio.Semaphore,
        _: "asyncio.Task[None]",
    ) -> None:
        writing.discard(key)
        free.release()
        if key in self._due:
            self._news.set()

    async def _write(self, key: PipelineKey) -> None:
        entry, wanted = self._entries.get(key), self._catalog.acknowledgement(key)
        if entry is None or wanted is None or (wanted == entry.stands and not entry.lost):
            return
        entry.stands, entry.sure, entry.lost = wanted, False, False
        try:
            there = await self._cluster.apply_status(
                _manifest(key, entry.uid, [shown(wanted, self._gateway)])
            )
        except OmnistageError as failed:
            self._retry(key, entry, failed)
            return
        entry.pause = FIRST_RETRY
        if not there and self._entries.get(key) is entry:
            del self._entries[key]

    def _retry(self, key: PipelineKey, entry: _Entry, failed: OmnistageError) -> None:
        entry.lost = True
        _log.warning(
            "status not written",
            pipeline=str(key),
            reason=failed.code,
            error=failed.message,
            again_in_s=entry.pause,
        )
        asyncio.get_running_loop().call_later(entry.pause, self.look, key)
        entry.pause = min(entry.pause * 2, LAST_RETRY)

    async def say_goodbye(self) -> None:
        """Takes back what was said of every pipeline. To be called when `run` has ended."""
        free = asyncio.Semaphore(AT_ONCE)

        async def take_back(key: PipelineKey, entry: _Entry) -> None:
            async with free:
                try:
                    await self._cluster.apply_status(_manifest(key, entry.uid, []))
                except OmnistageError as failed:
                    _log.warning("status not taken back", pipeline=str(key), error=failed.message)

        try:
            async with asyncio.timeout(GOODBYE), asyncio.TaskGroup() as group:
                for key, entry in self._entries.items():
                    if entry.stands is not None or entry.lost:
                        group.create_task(take_back(key, entry))
        except TimeoutError:
            _log.warning("status not taken back in time", seconds=GOODBYE)


def shown(said: Acknowledgement, gateway: str) -> dict[str, object]:
    """What is said, as it stands in the status."""
    entry: dict[str, object] = {"name": gateway, "turn": said.turn}
    if said.serving is not None:
        entry["serving"] = said.serving
    entry["routable"] = list(said.routable)
    entry["inUse"] = list(said.in_use)
    return entry


def _manifest(key: PipelineKey, uid: str, gateways: list[dict[str, object]]) -> dict[str, object]:
    return {
        "apiVersion": "omnistage.io/v1alpha1",
        "kind": "InferencePipeline",
        "metadata": {"name": key.name, "namespace": key.namespace, "uid": uid},
        "status": {"gateways": gateways},
    }
