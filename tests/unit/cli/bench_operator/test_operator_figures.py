"""What is counted, and the report that is made of it."""

from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from omnistage_cli.bench.operator.figures import (
    Figures,
    Machine,
    Spent,
    changed_pods,
    figures_of,
    is_ready,
    pod_states,
    report_of,
)
from omnistage_common.cluster.manifests import ObjectKey
from omnistage_operator.control.metrics import OperatorMetrics, ReconcileResult, WriteAction

FIGURES = Figures(
    requests={"patch stages": 60, "get leases": 3}, writes=60, reconciles={"stage": 90}
)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> OperatorMetrics:
    return OperatorMetrics(registry)


def read(registry: CollectorRegistry) -> Figures:
    """What a process with these figures tells."""
    return figures_of(generate_latest(registry).decode())


def test_requests_are_counted_by_verb_and_resource_whatever_came_of_them(
    registry: CollectorRegistry, metrics: OperatorMetrics
) -> None:
    api = metrics.cluster.api()
    for outcome in ("ok", "ok", "api_busy"):
        api.answered("patch", "stages/status", outcome, 0.01)
    api.answered("list", "pods", "ok", 0.01)

    assert read(registry).requests == {"patch stages/status": 3, "list pods": 1}


def test_what_was_skipped_is_no_write(
    registry: CollectorRegistry, metrics: OperatorMetrics
) -> None:
    for action in WriteAction:
        metrics.wrote("deployments", action)

    assert read(registry).writes == 3


def test_an_event_for_people_is_a_write_when_it_was_written(
    registry: CollectorRegistry, metrics: OperatorMetrics
) -> None:
    for outcome in ("written", "repeated", "dropped", "failed"):
        metrics.events.labels(outcome).inc()

    assert read(registry).writes == 1


def test_reconciles_are_counted_by_controller_whatever_came_of_them(
    registry: CollectorRegistry, metrics: OperatorMetrics
) -> None:
    controller = metrics.controller("stage")
    for result in ReconcileResult:
        controller.begun()
        controller.ended(result, 0.001)

    assert read(registry).reconciles == {"stage": len(ReconcileResult)}


def test_an_operator_that_has_done_nothing_has_counted_nothing(registry: CollectorRegistry) -> None:
    OperatorMetrics(registry)

    assert read(registry) == Figures(requests={}, writes=0, reconciles={})


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ([], False),
        ([{"type": "GraphValid", "status": "True"}], False),
        ([{"type": "Ready", "status": "False"}], False),
        ([{"type": "Ready", "status": "Unknown"}], False),
        ([{"type": "GraphValid", "status": "True"}, {"type": "Ready", "status": "True"}], True),
    ],
)
def test_a_pipeline_is_ready_when_it_says_so(
    conditions: list[dict[str, str]], *, ready: bool
) -> None:
    assert is_ready({"status": {"conditions": conditions}}) is ready


def test_a_pipeline_without_status_is_not_ready() -> None:
    assert not is_ready({})


def pod(name: str, uid: str = "u", version: str = "1") -> dict[str, Any]:
    """A pod of a run."""
    metadata = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": version}
    return {"metadata": metadata}


def test_pods_that_are_as_they_were_have_not_changed() -> None:
    states = pod_states([pod("a"), pod("b")])

    assert states.keys() == {ObjectKey("ns", "a"), ObjectKey("ns", "b")}
    assert changed_pods(states, pod_states([pod("b"), pod("a")])) == 0


@pytest.mark.parametrize(
    "after",
    [
        [pod("a")],
        [pod("a"), pod("b"), pod("c")],
        [pod("a"), pod("b", uid="another")],
        [pod("a"), pod("b", version="2")],
    ],
    ids=["gone", "new", "replaced", "written"],
)
def test_each_pod_that_is_not_as_it_was_counts_once(after: list[dict[str, Any]]) -> None:
    assert changed_pods(pod_states([pod("a"), pod("b")]), pod_states(after)) == 1


def test_the_report_has_the_operators_share_for_each_pipeline() -> None:
    report = report_of(
        pipelines=3,
        seconds_to_ready=12.34,
        figures=FIGURES,
        spent=Spent(rss_bytes=81_240_000, cpu_seconds=0.6),
        machine=Machine(cores=2, busy_seconds=20.0, bench_seconds=1.0),
        idle_writes=0,
        restart_pod_changes=0,
        restart_seconds=1.26,
    )
    printed = msgspec.json.decode(msgspec.json.encode(report))

    assert printed["requests_per_pipeline"] == 21.0
    assert printed["cpu_ms_per_pipeline"] == 200.0
    assert (printed["rss_mb"], printed["seconds_to_ready"]) == (81.2, 12.3)
    assert printed["requests"] == FIGURES.requests
    assert {"pipelines", "cpu_seconds", "idle_writes", "restart_pod_changes"} <= printed.keys()
