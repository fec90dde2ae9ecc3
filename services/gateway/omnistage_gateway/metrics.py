"""What the gateway counts and measures, in Prometheus terms."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

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
            "Requests by pipeline, by model and by how they ended",
            ["pipeline", "model", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "omnistage_gateway_request_seconds",
            "From the request's head to its last byte",
            ["pipeline", "model"],
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self._counted: dict[tuple[str, ModelName, str], tuple[Counter, Histogram]] = {}
        """Labelled children, looked up once."""
        self._left_out = Counter(
            "omnistage_gateway_left_out",
            "Objects of the cluster that could not be read, each once, by kind",
            ["kind"],
            registry=registry,
        )
        Gauge("omnistage_gateway_in_flight", "Requests inside", registry=registry).set_function(
            lambda: admission.requests
        )
        registry.register(_Pipelines(catalog))

    def ended(self, pipeline: str, model: ModelName, outcome: str, seconds: float) -> None:
        """A request ended.

        Args:
            pipeline: Which it was on; empty when it came to none.
            model: A served name; empty when the request named none that is served.
            outcome: `done` or the code of an error.
            seconds: From its head to its last byte.
        """
        counted = self._counted.get((pipeline, model, outcome))
        if counted is None:
            counted = (
                self._requests.labels(pipeline, model, outcome),
                self._seconds.labels(pipeline, model),
            )
            self._counted[pipeline, model, outcome] = counted
        requests, duration = counted
        requests.inc()
        duration.observe(seconds)

    def left_out(self, kind: str) -> None:
        """An object of the cluster could not be read."""
        self._left_out.labels(kind).inc()


class _Pipelines(Collector):
    """Looks at the pipelines and their replicas when it is asked."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The metrics without samples."""
        return (_outstanding(), _requests(), _routable(), _serving())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """What is there now."""
        outstanding: dict[tuple[str, str], float] = {}
        requests: dict[tuple[str, str], float] = {}
        routable: dict[tuple[str, str], float] = {}
        serving = {
            (pipeline.label, str(pipeline.revision)): 1.0 for pipeline in self._catalog.serving
        }
        for pipeline in self._catalog.pipelines():
            labels: tuple[str, str] = (pipeline.label, pipeline.revision)
            requests[labels] = requests.get(labels, 0) + pipeline.requests
            routable[labels] = float(not pipeline.unready)
            for pool in pipeline.pools.values():
                for link in (*pool.links, *pool.leaving):
                    outstanding[pool.stage, link.endpoint.replica] = link.outstanding
        for family, samples in zip(
            self.describe(), (outstanding, requests, routable, serving), strict=True
        ):
            for labels, value in samples.items():
                family.add_metric(labels, value)
            yield family


def _outstanding() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "omnistage_gateway_outstanding",
        "Requests that a replica has not ended",
        labels=["stage", "replica"],
    )


def _requests() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "omnistage_gateway_pipeline_requests",
        "Requests on a revision of a pipeline",
        labels=["pipeline", "revision"],
    )


def _routable() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "omnistage_gateway_pipeline_routable",
        "Whether every stage of a revision can be reached",
        labels=["pipeline", "revision"],
    )


def _serving() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "omnistage_gateway_pipeline_serving",
        "1 for the revision of a pipeline that new requests go to",
        labels=["pipeline", "revision"],
    )
