"""Which gateways live, and which pipeline has a model name that several ask for."""

from collections.abc import Iterable

from omnistage_common.ids import ModelName
from omnistage_operator.planning.decisions import Json

__all__ = ["departed_gateways", "elder", "live_gateways", "served_names"]


def live_gateways(pods: Iterable[Json]) -> tuple[str, ...]:
    """Names of the gateways that take requests or still finish some: ready ones, and leaving ones."""
    return tuple(sorted(pod["metadata"]["name"] for pod in pods if _lives(pod)))


def departed_gateways(status: Json, pods: Iterable[Json]) -> tuple[str, ...]:
    """Names of gateways that said something of a pipeline and are not there any more at all."""
    there = {pod["metadata"]["name"] for pod in pods}
    said = {entry["name"] for entry in status.get("gateways", [])}
    return tuple(sorted(said - there))


def served_names(pipeline: Json) -> tuple[ModelName, ...]:
    """Names that clients write in `model` for a pipeline."""
    written = pipeline["spec"].get("model", {}).get("servedNames", [])
    return tuple(written) or (ModelName(pipeline["metadata"]["name"]),)


def elder(pipeline: Json, others: Iterable[Json]) -> Json | None:
    """The pipeline that has a name before this one: the oldest; None when that is this one.

    Args:
        pipeline: One that asks for the name.
        others: All that ask for it, in any namespace; it may be among them.
    """
    first = min([pipeline, *others], key=_age)
    return None if _age(first) == _age(pipeline) else first


def _age(pipeline: Json) -> tuple[str, str, str]:
    metadata = pipeline["metadata"]
    return metadata.get("creationTimestamp", ""), metadata["namespace"], metadata["name"]


def _lives(pod: Json) -> bool:
    status = pod.get("status", {})
    if status.get("phase") in {"Succeeded", "Failed"}:
        return False
    if pod["metadata"].get("deletionTimestamp"):
        return True
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in status.get("conditions", [])
    )
