"""Events for people: once, beside the work, and never in its way."""

from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from fakes.api_server import FakeApiServer
from fakes.controlled import config_map, running
from omnistage_common.cluster.api import Api
from omnistage_common.cluster.fencing import Fence
from omnistage_common.cluster.kinds import EVENTS
from omnistage_common.cluster.manifests import Manifest
from omnistage_operator.cluster.recording import EventType, Recorder
from omnistage_operator.control.metrics import OperatorMetrics


@pytest.fixture
async def recorder(api: Api, metrics: OperatorMetrics) -> AsyncIterator[Recorder]:
    made = Recorder(
        api=api, controller="omnistage.io/operator", instance="operator-0", metrics=metrics
    )
    async with running(made.run()):
        yield made


@pytest.fixture
def about(server: FakeApiServer) -> Manifest:
    return server.put(config_map("thinker"))


def say(recorder: Recorder, about: Manifest, note: str = "is up") -> bool:
    """Records something."""
    return recorder.record(
        about, kind=EventType.NORMAL, reason="RevisionServing", action="Rollout", note=note
    )


async def test_an_event_names_what_it_is_about(
    server: FakeApiServer, recorder: Recorder, about: Manifest
) -> None:
    assert say(recorder, about)
    await recorder.flush()

    (event,) = server.all(EVENTS)
    assert event["regarding"]["uid"] == about["metadata"]["uid"]
    assert event["metadata"]["namespace"] == "default"
    assert (event["type"], event["reason"], event["action"]) == (
        "Normal",
        "RevisionServing",
        "Rollout",
    )
    assert event["note"] == "is up"
    assert event["reportingController"] == "omnistage.io/operator"
    assert event["eventTime"].endswith("Z")


async def test_the_same_note_is_written_once(
    server: FakeApiServer, recorder: Recorder, about: Manifest
) -> None:
    said = [say(recorder, about) for _ in range(5)]
    say(recorder, about, "is down")
    await recorder.flush()

    assert said == [True, False, False, False, False]
    assert len(server.all(EVENTS)) == 2


async def test_an_object_without_namespace_has_its_events_in_the_default_one(
    server: FakeApiServer, recorder: Recorder
) -> None:
    runtime = server.put(
        {
            "apiVersion": "omnistage.io/v1alpha1",
            "kind": "StageRuntime",
            "metadata": {"name": "cpu"},
        }
    )
    say(recorder, runtime)
    await recorder.flush()

    assert server.all(EVENTS)[0]["metadata"]["namespace"] == "default"


async def test_a_long_note_is_cut_to_what_the_server_takes(
    server: FakeApiServer, recorder: Recorder, about: Manifest
) -> None:
    say(recorder, about, "ü" * 1000)
    await recorder.flush()

    assert len(server.all(EVENTS)[0]["note"].encode()) <= 1024


async def test_a_server_that_refuses_events_is_nobodys_failure(
    server: FakeApiServer,
    recorder: Recorder,
    about: Manifest,
    fence: Fence,
    registry: CollectorRegistry,
) -> None:
    server.faults.fail_next(403, resource="events")
    say(recorder, about)
    await recorder.flush()
    fence.close()
    say(recorder, about, "fenced")
    await recorder.flush()

    assert server.all(EVENTS) == []
    failed = registry.get_sample_value("omnistage_operator_events_total", {"outcome": "failed"})
    assert failed == 2


async def test_too_many_events_are_dropped_and_never_waited_for(
    api: Api, metrics: OperatorMetrics, about: Manifest, registry: CollectorRegistry
) -> None:
    idle = Recorder(api=api, controller="c", instance="i", metrics=metrics)

    said = [say(idle, about, str(number)) for number in range(2000)]

    assert said.count(True) == 1024
    dropped = registry.get_sample_value("omnistage_operator_events_total", {"outcome": "dropped"})
    assert dropped == 2000 - 1024
