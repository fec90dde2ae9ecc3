"""Replicas around a scripted engine, which hold nothing any more when the test is over."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from fakes.edges import Edge
from fakes.replicas import new_replica
from fakes.scripted_engine import ScriptedEngine
from omnistage_common.links.frames import Phase
from omnistage_stage.service.replica import Replica

NewReplica = Callable[..., Replica]


@pytest.fixture
def registry() -> CollectorRegistry:
    """Where the replica of a test counts."""
    return CollectorRegistry()


@pytest.fixture
def counted(registry: CollectorRegistry) -> Callable[[str], float]:
    """How many requests ended in a way."""

    def count(outcome: str) -> float:
        labels = {"outcome": outcome}
        return registry.get_sample_value("omnistage_stage_requests_total", labels) or 0.0

    return count


@pytest.fixture
def engine() -> ScriptedEngine:
    """An engine that does as it is told."""
    return ScriptedEngine()


@pytest.fixture
def make_replica(
    engine: ScriptedEngine, tmp_path: Path, registry: CollectorRegistry
) -> Iterator[NewReplica]:
    """Makes the replica of the test."""
    made: list[Replica] = []

    def make(*, max_running: int = 2, max_queued: int = 2, phase: Phase = Phase.READY) -> Replica:
        made.append(
            new_replica(
                engine,
                tmp_path,
                registry=registry,
                phase=phase,
                max_running=max_running,
                max_queued=max_queued,
            )
        )
        return made[-1]

    yield make
    for replica in made:
        tensors = replica.plane.statistics()
        replica.plane.close()
        assert (replica.admission.running, replica.admission.queued) == (0, 0)
        assert (tensors.leases, tensors.used_bytes, tensors.waiting) == (0, 0, 0)


@pytest.fixture
def replica(make_replica: NewReplica) -> Replica:
    """A ready replica with two places and two more to wait in."""
    return make_replica()


@pytest.fixture
async def edge(replica: Replica, engine: ScriptedEngine) -> AsyncIterator[Edge]:
    """Links that end with the test."""
    async with AsyncExitStack() as stack:
        yield Edge(replica, engine, stack)
