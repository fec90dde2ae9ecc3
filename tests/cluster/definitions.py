"""The product's definitions in a cluster: those that a test adds go with it, its owner's stay."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import yaml

from cluster.laboratory.access import Cluster
from cluster.products import ROOT

__all__ = ["CHART", "FOLDER", "NAMES", "added", "applied", "existing"]

CHART: Final = ROOT / "charts" / "omnistage"
FOLDER: Final = CHART / "definitions"
NAMES: Final = frozenset(
    yaml.safe_load(path.read_text(encoding="utf-8"))["metadata"]["name"]
    for path in FOLDER.glob("*.yaml")
)
_OF_THE_CLUSTER: Final = "stageruntimes,pipelinetemplates"
"""Kinds whose objects no namespace takes with it."""


def existing(cluster: Cluster) -> frozenset[str]:
    """Which of the product's definitions the cluster has."""
    names = {each["metadata"]["name"] for each in cluster.get("crd")["items"]}
    return NAMES & names


@contextmanager
def added(cluster: Cluster) -> Iterator[frozenset[str]]:
    """Tells which definitions are there; what the block adds to them, and of them, goes with it."""
    before = existing(cluster)
    objects = _objects(cluster) if before else frozenset()
    try:
        yield before
    finally:
        new = existing(cluster) - before
        if new:
            cluster.call("delete", "crd", *sorted(new))
        elif before:
            strangers = sorted(_objects(cluster) - objects)
            if strangers:
                cluster.call("delete", *strangers)


@contextmanager
def applied(cluster: Cluster) -> Iterator[None]:
    """The definitions as they are now, until the end of the block."""
    with added(cluster):
        cluster.call("apply", "--server-side", "--force-conflicts", f"--filename={FOLDER}")
        cluster.wait("condition=Established", *(f"crd/{name}" for name in sorted(NAMES)))
        yield


def _objects(cluster: Cluster) -> frozenset[str]:
    return frozenset(cluster.call("get", _OF_THE_CLUSTER, "--output=name").split())
