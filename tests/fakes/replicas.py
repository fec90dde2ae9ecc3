"""Replicas put together by hand, around any engine, with tensors in a folder of the test's own."""

import asyncio
from pathlib import Path

from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from fakes.plans import one_stage_plan
from omnistage_common.ids import ReplicaId, new_incarnation, this_host
from omnistage_common.links.frames import Phase
from omnistage_common.tensors import TensorPlane
from omnistage_stage.engines.protocol import Engine
from omnistage_stage.service.admission import Admission
from omnistage_stage.service.lifecycle import Lifecycle
from omnistage_stage.service.metrics import StageMetrics
from omnistage_stage.service.peers import Peers
from omnistage_stage.service.replica import Replica
from omnistage_stage.service.subscriptions import Outlets

__all__ = ["SLAB_BYTES", "new_replica"]

SLAB_BYTES = 8 << 20


def new_replica(
    engine: Engine,
    directory: Path,
    *,
    registry: CollectorRegistry | None = None,
    phase: Phase = Phase.READY,
    max_running: int = 2,
    max_queued: int = 2,
    device_slab_bytes: int = 0,
) -> Replica:
    """A replica in that phase. Its plane is the caller's to close."""
    incarnation, host = new_incarnation(), this_host()
    admission = Admission(max_running=max_running, max_queued=max_queued)
    plane = TensorPlane(
        incarnation=incarnation, host=host, slab_bytes=SLAB_BYTES, directory=directory
    )
    lifecycle = Lifecycle()
    lifecycle.enter(phase)
    stage = one_stage_plan().stages[0]
    limits = replace(stage.limits, device_slab_bytes=device_slab_bytes)
    metrics = StageMetrics(registry or CollectorRegistry(), admission=admission, plane=plane)
    return Replica(
        id=ReplicaId("thinker-0"),
        plan=replace(stage, limits=limits),
        engine=engine,
        admission=admission,
        lifecycle=lifecycle,
        plane=plane,
        outlets=Outlets(max_waiting=max_running + max_queued),
        peers=Peers(),
        metrics=metrics,
        incarnation=incarnation,
        host=host,
        suspect=asyncio.Event(),
    )
