"""What a replica counts and measures, in Prometheus terms."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from omnistage_common.errors import OmnistageError
from omnistage_common.links.frames import Usage
from omnistage_common.telemetry import LATENCY_BUCKETS
from omnistage_common.tensors import TensorPlane
from omnistage_stage.service.admission import Admission

__all__ = ["StageMetrics"]


class StageMetrics:
    """Counters of one replica; gauges read what is there when they are scraped."""

    def __init__(
        self, registry: CollectorRegistry, *, admission: Admission, plane: TensorPlane
    ) -> None:
        self._requests = Counter(
            "omnistage_stage_requests",
            "Requests by how they ended",
            ["outcome"],
            registry=registry,
        )
        self._queue_wait = Histogram(
            "omnistage_stage_queue_wait_seconds",
            "Wait for a place in the engine",
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self._run = Histogram(
            "omnistage_stage_run_seconds",
            "Time in the engine",
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self._first_output = Histogram(
            "omnistage_stage_first_output_seconds",
            "Time in the engine to the first output",
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self._tokens = Counter(
            "omnistage_stage_tokens", "Tokens read and made", ["direction"], registry=registry
        )
        for name, (text, read) in _gauges(admission, plane).items():
            Gauge(name, text, registry=registry).set_function(read)
        registry.register(_Transfers(plane))
        self._input_tokens = self._tokens.labels("input")
        self._output_tokens = self._tokens.labels("output")
        self._done = self._requests.labels("done")
        self._cancelled = self._requests.labels("cancelled")

    def placed(self, waited_s: float) -> None:
        """A request has got its place in the engine; told at once, for autoscalers look at it."""
        self._queue_wait.observe(waited_s)

    def ended(self, usage: Usage) -> None:
        """A request ended well."""
        self._done.inc()
        self._run.observe(usage.run_us / 1e6)
        self._first_output.observe(usage.first_output_us / 1e6)
        self._input_tokens.inc(usage.input_tokens)
        self._output_tokens.inc(usage.output_tokens)

    def failed(self, error: OmnistageError) -> None:
        """A request ended badly."""
        self._requests.labels(error.code).inc()

    def cancelled(self) -> None:
        """A request was not wanted any more."""
        self._cancelled.inc()


def _gauges(admission: Admission, plane: TensorPlane) -> dict[str, tuple[str, Callable[[], float]]]:
    """Name -> what it is and how to read it."""
    return {
        "omnistage_stage_running": ("Requests in the engine", lambda: admission.running),
        "omnistage_stage_queued": ("Requests waiting for a place", lambda: admission.queued),
        "omnistage_stage_tensor_leases": (
            "Tensor leases held",
            lambda: plane.statistics().leases,
        ),
        "omnistage_stage_tensor_device_leases": (
            "Those of the tensor leases that are on the device",
            lambda: plane.statistics().device_leases,
        ),
        "omnistage_stage_tensor_device_used_bytes": (
            "Bytes of tensors held on the device, made there or received",
            lambda: plane.statistics().device_used_bytes,
        ),
        "omnistage_stage_tensor_slab_used_bytes": (
            "Bytes of tensors held, made here or received",
            lambda: plane.statistics().used_bytes,
        ),
        "omnistage_stage_tensor_waiting": (
            "Tensors that wait for room",
            lambda: plane.statistics().waiting,
        ),
    }


class _Transfers(Collector):
    """Tensors read from other processes, by the way they came."""

    def __init__(self, plane: TensorPlane) -> None:
        self._plane = plane

    def collect(self) -> Iterator[Metric]:
        """What was counted up to now."""
        counts = self._plane.counts()
        columns = {
            "tensors": ("Tensors read from other processes", [x.tensors for x in counts]),
            "tensor_bytes": ("Bytes of tensors read", [x.bytes for x in counts]),
            "tensors_lost": ("Tensors found lost", [x.lost for x in counts]),
            "tensor_fallbacks": (
                "Peers for which a transport was not to be had",
                [x.fallbacks for x in counts],
            ),
        }
        for name, (text, values) in columns.items():
            family = CounterMetricFamily(f"omnistage_stage_{name}", text, labels=["transport"])
            for count, value in zip(counts, values, strict=True):
                family.add_metric([count.kind.value], value)
            yield family
