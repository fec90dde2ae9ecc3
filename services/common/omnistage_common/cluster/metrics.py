"""Figures of a process that talks to an API server: its requests, its watches, what it keeps.

One registry per process is handed in. Sizes and ages are read when they are asked for.
"""

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["ApiMetrics", "CacheMetrics", "ClusterMetrics"]

_PREFIX: Final = "omnistage_cluster_"
_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class ApiMetrics:
    """Figures of the requests to the API server."""

    def __init__(self, owner: "ClusterMetrics") -> None:
        self._requests = owner.api_requests
        self._seconds = owner.api_seconds
        self._waits = owner.api_waits

    def answered(self, verb: str, resource: str, outcome: str, seconds: float) -> None:
        """One request got its answer, or will never get one."""
        self._requests.labels(verb, resource, outcome).inc()
        self._seconds.labels(verb).observe(seconds)

    def held_back(self, seconds: float) -> None:
        """A request waited for its turn under the client's own limit."""
        self._waits.inc(seconds)


class CacheMetrics:
    """Figures of one informer."""

    def __init__(self, owner: "ClusterMetrics", resource: str) -> None:
        self._resource = resource
        self._restarts = owner.watch_restarts
        self._events = owner.watch_events
        self._objects = owner.cache_objects.labels(resource)
        self._age = owner.watch_age.labels(resource)

    def observe(self, *, objects: Callable[[], int], age: Callable[[], float]) -> None:
        """Reads size and silence from these from now on."""
        self._objects.set_function(objects)
        self._age.set_function(age)

    def restarted(self, reason: str) -> None:
        """A watch ended and is opened anew, or a list is read anew."""
        self._restarts.labels(self._resource, reason).inc()

    def event(self) -> None:
        """A change arrived."""
        self._events.labels(self._resource).inc()


class ClusterMetrics:
    """All of them; views go to the parts that count."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(_PREFIX + name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(_PREFIX + name, text, labels, registry=registry)

        self.api_requests = counter(
            "api_requests", "Requests to the API server.", "verb", "resource", "outcome"
        )
        self.api_seconds = Histogram(
            _PREFIX + "api_request_seconds",
            "Duration of requests.",
            ("verb",),
            registry=registry,
            buckets=_SECONDS,
        )
        self.api_waits = counter(
            "api_held_back_seconds", "Waiting under the client's own request limit."
        )
        self.watch_restarts = counter(
            "watch_restarts", "Watches and lists begun anew.", "resource", "reason"
        )
        self.watch_events = counter("watch_events", "Changes received.", "resource")
        self.watch_age = gauge(
            "watch_silence_seconds", "Seconds since the last sign of a watch.", "resource"
        )
        self.cache_objects = gauge("cache_objects", "Objects in the cache.", "resource")

    def api(self) -> ApiMetrics:
        """The view of the client of the API server."""
        return ApiMetrics(self)

    def cache(self, resource: str) -> CacheMetrics:
        """The view of one informer."""
        return CacheMetrics(self, resource)
