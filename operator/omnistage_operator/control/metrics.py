"""The operator's figures, named as controller-runtime names its own, so that dashboards carry over.

One registry per process is handed in. Figures that can be read when they are asked for (depths,
ages) are read then; nothing is counted twice to keep a gauge in step.
"""

from enum import Enum
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from omnistage_common.cluster.metrics import ClusterMetrics

__all__ = [
    "ControllerMetrics",
    "OperatorMetrics",
    "QueueFigures",
    "QueueMetrics",
    "ReconcileResult",
    "WriteAction",
]

_PREFIX: Final = "omnistage_operator_"
_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ReconcileResult(Enum):
    """How one reconcile ended."""

    SUCCESS = "success"
    REQUEUE_AFTER = "requeue_after"
    CONFLICT = "conflict"
    """Somebody else wrote first; tried again at once."""
    FENCED = "fenced"
    """Leadership was lost on the way."""
    ERROR = "error"


class WriteAction(Enum):
    """What the executor did with an intent."""

    APPLY = "apply"
    SKIP = "skip"
    """The live object held the intent already."""
    STATUS = "status"
    STATUS_SKIP = "status_skip"
    DELETE = "delete"


class QueueFigures(Protocol):
    """What a queue can say about itself when it is asked."""

    @property
    def depth(self) -> int:
        """Keys that wait for a worker."""

    def unfinished(self) -> tuple[float, float]:
        """Seconds of the work in progress: all together, and the longest."""


class QueueMetrics:
    """Figures of one work queue."""

    def __init__(self, owner: "OperatorMetrics", name: str) -> None:
        self._adds = owner.queue_adds.labels(name)
        self._retries = owner.queue_retries.labels(name)
        self._latency = owner.queue_latency.labels(name)
        self._work = owner.queue_work.labels(name)
        self._depth = owner.queue_depth.labels(name)
        self._unfinished = owner.queue_unfinished.labels(name)
        self._longest = owner.queue_longest.labels(name)

    def observe(self, queue: QueueFigures) -> None:
        """Reads depths and ages from this queue from now on."""
        self._depth.set_function(lambda: queue.depth)
        self._unfinished.set_function(lambda: queue.unfinished()[0])
        self._longest.set_function(lambda: queue.unfinished()[1])

    def added(self) -> None:
        """A key waits that did not wait before."""
        self._adds.inc()

    def retried(self) -> None:
        """A key failed and comes back."""
        self._retries.inc()

    def waited(self, seconds: float) -> None:
        """A key waited so long for a worker."""
        self._latency.observe(seconds)

    def worked(self, seconds: float) -> None:
        """A worker was busy with a key for so long."""
        self._work.observe(seconds)


class ControllerMetrics:
    """Figures of one controller."""

    def __init__(self, owner: "OperatorMetrics", name: str) -> None:
        self._owner = owner
        self._name = name
        self._seconds = owner.reconcile_seconds.labels(name)
        self._active = owner.active_workers.labels(name)
        self.queue = QueueMetrics(owner, name)
        for result in ReconcileResult:
            owner.reconciles.labels(name, result.value)

    def begun(self) -> None:
        """A worker starts a reconcile."""
        self._active.inc()

    def ended(self, result: ReconcileResult, seconds: float) -> None:
        """A worker ended a reconcile."""
        self._active.dec()
        self._owner.reconciles.labels(self._name, result.value).inc()
        self._seconds.observe(seconds)


class OperatorMetrics:
    """Every figure of the process; views of it go to the parts that count."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.cluster = ClusterMetrics(registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(_PREFIX + name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(_PREFIX + name, text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(_PREFIX + name, text, labels, registry=registry, buckets=_SECONDS)

        self.reconciles = counter("reconcile", "Reconciles by result.", "controller", "result")
        self.reconcile_seconds = histogram(
            "reconcile_time_seconds", "Duration of reconciles.", "controller"
        )
        self.active_workers = gauge("active_workers", "Reconciles in progress.", "controller")
        self.queue_adds = counter("workqueue_adds", "Keys added.", "name")
        self.queue_retries = counter("workqueue_retries", "Keys re-queued after failure.", "name")
        self.queue_depth = gauge("workqueue_depth", "Keys waiting for a worker.", "name")
        self.queue_latency = histogram(
            "workqueue_queue_duration_seconds", "Wait of a key for a worker.", "name"
        )
        self.queue_work = histogram("workqueue_work_duration_seconds", "Work on a key.", "name")
        self.queue_unfinished = gauge(
            "workqueue_unfinished_work_seconds", "Work in progress, all together.", "name"
        )
        self.queue_longest = gauge(
            "workqueue_longest_running_processor_seconds", "The longest work in progress.", "name"
        )
        self.writes = counter("writes", "What the executor did with intents.", "resource", "action")
        self.events = counter("events", "Events for people, by what became of them.", "outcome")
        self.leader = gauge("leader", "1 while this process may write.")

    def controller(self, name: str) -> ControllerMetrics:
        """The view of one controller."""
        return ControllerMetrics(self, name)

    def wrote(self, resource: str, action: WriteAction) -> None:
        """The executor dealt with an intent."""
        self.writes.labels(resource, action.value).inc()
