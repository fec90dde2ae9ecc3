"""Events for people: what happened to an object, once.

Planners record transitions and never wait for it: a note goes into a bounded queue and is written
beside the work. The same note about the same object is not written again for a while, whoever says it.
An event that cannot be written is lost, counted, and nobody's failure.
"""

import asyncio
import time
from collections import OrderedDict
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

import structlog

from omnistage_common.cluster.api import Api
from omnistage_common.cluster.errors import ApiError
from omnistage_common.cluster.kinds import EVENTS
from omnistage_common.cluster.manifests import Manifest, key_of, uid_of
from omnistage_common.errors import truncated
from omnistage_operator.control.metrics import OperatorMetrics

__all__ = ["EventType", "Recorder"]

log = structlog.get_logger(__name__)

_REMEMBERED: Final = 4096
"""Notes that are known to have been written."""
_AGAIN_AFTER_S: Final = 600.0
"""The same note may be written again after so long: the state has come back."""
_MAX_WAITING: Final = 1024
_MAX_NOTE: Final = 1024
"""Bytes that the API server takes in `note`."""
_MAX_NAME: Final = 200


class EventType(Enum):
    """Whether somebody should look."""

    NORMAL = "Normal"
    WARNING = "Warning"


class Recorder:
    """Writes events in the name of one controller."""

    def __init__(
        self, *, api: Api, controller: str, instance: str, metrics: OperatorMetrics
    ) -> None:
        """Writes nothing before `run`.

        Args:
            api: The way to the API server.
            controller: Who reports, e.g. `omnistage.io/operator`.
            instance: Which process, e.g. the pod's name.
            metrics: Where to count.
        """
        self._api = api
        self._controller = controller
        self._instance = instance
        self._metrics = metrics
        self._waiting: asyncio.Queue[Manifest] = asyncio.Queue(_MAX_WAITING)
        self._written: OrderedDict[tuple[str, ...], float] = OrderedDict()

    def record(
        self, regarding: Manifest, *, kind: EventType, reason: str, action: str, note: str
    ) -> bool:
        """Notes a transition of an object.

        Args:
            regarding: The object.
            kind: Whether somebody should look.
            reason: Why, in one CamelCase word, e.g. `RevisionServing`.
            action: What the controller did, in one CamelCase word, e.g. `Rollout`.
            note: A sentence for people.

        Returns:
            Whether the event will be written; False when it was just written, or too many wait.
        """
        if not self._is_new((uid_of(regarding), reason, action, note)):
            self._count("repeated")
            return False
        try:
            self._waiting.put_nowait(self._event(regarding, kind, reason, action, note))
        except asyncio.QueueFull:
            self._count("dropped")
            return False
        return True

    async def run(self) -> None:
        """Writes what is recorded until cancelled."""
        while True:
            event = await self._waiting.get()
            try:
                await self._api.create(event, EVENTS)
            except ApiError as error:
                self._count("failed")
                log.warning("event not written", error=truncated(error.message))
            else:
                self._count("written")
            finally:
                self._waiting.task_done()

    async def flush(self) -> None:
        """Returns once everything recorded so far was written or given up; needs `run` beside it."""
        await self._waiting.join()

    def _is_new(self, note: tuple[str, ...]) -> bool:
        now = time.monotonic()
        known = self._written.get(note)
        if known is not None and now < known + _AGAIN_AFTER_S:
            return False
        self._written[note] = now
        self._written.move_to_end(note)
        while len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)
        return True

    def _event(
        self, regarding: Manifest, kind: EventType, reason: str, action: str, note: str
    ) -> dict[str, Any]:
        key = key_of(regarding)
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        reference = {
            "apiVersion": regarding["apiVersion"],
            "kind": regarding["kind"],
            "name": key.name,
            "uid": uid_of(regarding),
            "resourceVersion": regarding["metadata"].get("resourceVersion", ""),
        }
        if key.namespace:
            reference["namespace"] = key.namespace
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {
                "name": f"{key.name[:_MAX_NAME]}.{time.time_ns():x}",
                "namespace": key.namespace or "default",
            },
            "eventTime": now,
            "type": kind.value,
            "reason": reason,
            "action": action,
            "note": note.encode()[:_MAX_NOTE].decode(errors="ignore"),
            "regarding": reference,
            "reportingController": self._controller,
            "reportingInstance": self._instance,
        }

    def _count(self, outcome: str) -> None:
        self._metrics.events.labels(outcome).inc()
