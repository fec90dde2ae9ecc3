"""What a gateway says, without one: that it serves a pipeline's current revision once it is there.

A real gateway sees for itself that it reaches the replicas, which here cannot be reached by anybody.
This one takes the status's word for it, and writes its entry as a real one does: by server-side apply,
as a field manager of its own, once for each revision.
"""

import asyncio
from typing import Any, Final

from omnistage_common.cluster.api import Api
from omnistage_common.cluster.errors import ObjectNotFound, WriteConflict
from omnistage_common.cluster.kinds import INFERENCE_PIPELINES
from omnistage_common.cluster.manifests import Manifest, ObjectKey, key_of, uid_of
from omnistage_common.cluster.watched import Watched

__all__ = ["SimulatedGateway", "acknowledgement"]

_WORKERS: Final = 8
"""Requests at a time."""


class SimulatedGateway:
    """Acknowledges every pipeline. Make it before the caches run, so that it misses none."""

    def __init__(self, api: Api, pipelines: Watched, name: str) -> None:
        """Says nothing before `run`.

        Args:
            api: With the gateway's own field manager.
            pipelines: What to acknowledge.
            name: Of the gateway's pod.
        """
        self._api = api
        self._pipelines = pipelines.store
        self._name = name
        self._due: asyncio.Queue[ObjectKey] = asyncio.Queue()
        self._said: dict[ObjectKey, dict[str, Any]] = {}
        pipelines.on_change(self._changed)

    async def run(self) -> None:
        """Acknowledges until cancelled."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(_WORKERS):
                workers.create_task(self._work())

    def _changed(self, _: Manifest | None, after: Manifest | None) -> None:
        if after is None:
            return
        said = acknowledgement(after, self._name)
        if said is not None and self._said.get(key_of(after)) != said:
            self._said[key_of(after)] = said
            self._due.put_nowait(key_of(after))

    async def _work(self) -> None:
        while True:
            key = await self._due.get()
            pipeline, said = self._pipelines.get(key), self._said[key]
            if pipeline is None:
                continue
            body = {
                "apiVersion": INFERENCE_PIPELINES.api_version,
                "kind": INFERENCE_PIPELINES.kind,
                "metadata": {
                    "name": key.name,
                    "namespace": key.namespace,
                    "uid": uid_of(pipeline),
                },
                "status": {"gateways": [said]},
            }
            try:
                await self._api.apply_status(body, INFERENCE_PIPELINES)
            except (ObjectNotFound, WriteConflict):
                continue


def acknowledgement(pipeline: Manifest, gateway: str) -> dict[str, Any] | None:
    """The entry of a gateway; None while there is nothing that it could serve.

    Args:
        pipeline: As the cluster has it.
        gateway: Name of the gateway's pod.
    """
    status = pipeline.get("status", {})
    current, stages = status.get("currentRevision"), status.get("stages", [])
    there = all(each.get("ready", 0) >= each.get("desired", 0) for each in stages)
    if not (current and stages and there):
        return None
    return {
        "name": gateway,
        "turn": status.get("turn", 0),
        "serving": current,
        "routable": [current],
        "inUse": [],
    }
