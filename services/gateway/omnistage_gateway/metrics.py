"""What the gateway counts and measures, in Prometheus terms."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from omnistage_common.ids import ModelName
from omnistage_common.telemetry import LATENCY_BUCKETS
from omnistage_gateway.admission import Admission
from omnistage_gateway.pipelines.catalog import Catalog

__all__ = ["GatewayMetrics"]


class GatewayMetrics:
    """Counters of one gateway process; gauges read what is there when they are scraped."""

    def __init__(
        self, registry: CollectorRegistry, *, admission: Admission, catalog: Catalog
    ) -> None:
        self._requests = Counter(
            "omnistage_gateway_requests",
            "Requests by model and by how they ended",
            ["model", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "omnistage_gateway_request_seconds",
            "From the request's head to its last byte",
            ["model"],
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self._counted: dict[tuple[ModelName, str], tuple[Counter, Histogram]] = {}
        """Labelled children, looked up once."""
        Gauge("omnistage_gateway_in_flight", "Requests inside", registry=registry).set_function(
            lambda: admission.requests
        )
        outstanding = Gauge(
            "omnistage_gateway_outstanding",
            "Requests that a replica has not ended",
            ["stage", "replica"],
            registry=registry,
        )
        for pipeline in catalog.pipelines:
            for pool in pipeline.pools.values():
                for link in pool.links:
                    labelled = outstanding.labels(pool.stage, link.endpoint.replica)
                    labelled.set_function(partial(getattr, link, "outstanding"))

    def ended(self, model: ModelName, outcome: str, seconds: float) -> None:
        """A request ended.

        Args:
            model: A served name; empty when the request named none that is served.
            outcome: `done` or the code of an error.
            seconds: From its head to its last byte.
        """
        counted = self._counted.get((model, outcome))
        if counted is None:
            counted = (self._requests.labels(model, outcome), self._seconds.labels(model))
            self._counted[model, outcome] = counted
        requests, duration = counted
        requests.inc()
        duration.observe(seconds)
