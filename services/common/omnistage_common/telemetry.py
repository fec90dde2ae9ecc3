"""Logs and metrics, the same way in every process.

Logs are JSON lines on standard error (one event a line, ISO time, the component's name), so that a
file, a container runtime and a person with `jq` can all read them. Metrics are Prometheus; each
process has one registry of its own, handed around rather than global.
"""

import logging
import sys
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector

__all__ = ["LATENCY_BUCKETS", "configure_logging", "new_registry"]

LATENCY_BUCKETS: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
)
"""Upper bounds in seconds, from a control hop to a long video."""


def configure_logging(*, component: str, level: str = "INFO") -> None:
    """Sends every event of this process to standard error as JSON lines.

    Args:
        component: Who speaks, e.g. `gateway` or a replica id.
        level: Name of a level of the standard library's logging.
    """
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(component=component)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")


def new_registry() -> CollectorRegistry:
    """A registry that already counts this process's memory, CPU and file descriptors."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    return registry
