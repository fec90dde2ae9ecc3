"""Plan ConfigMaps: a pipeline's revision, resolved, for gateways to read.

One per revision, immutable. While it is there, the stage revisions that it names are kept alive; what
it says is written once, for nothing in it that matters can change without another revision.
"""

from collections.abc import Iterable, Mapping

import msgspec

from omnistage_common.ids import Revision, StageName
from omnistage_common.pipeline.plan import PipelinePlan, encode_plan
from omnistage_common.pipeline.published import (
    PIPELINE_LABEL,
    PLAN_KEY,
    PLAN_LABEL,
    SERVICES_KEY,
    PublishedService,
)
from omnistage_operator.planning.decisions import Json
from omnistage_operator.planning.names import child_name

__all__ = [
    "owner_reference",
    "plan_object",
    "plan_revision",
    "services_of",
    "stage_objects",
]


def owner_reference(owner: Json) -> dict[str, object]:
    """Makes an object go when its owner goes."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def plan_object(
    pipeline: Json, plan: PipelinePlan, services: Mapping[StageName, PublishedService]
) -> dict[str, object]:
    """The ConfigMap of a pipeline's revision.

    Args:
        pipeline: Its owner.
        plan: What it holds.
        services: Where the replicas of each stage are found.
    """
    metadata = pipeline["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": child_name(metadata["name"], "plan", plan.revision),
            "namespace": metadata["namespace"],
            "labels": {
                "app.kubernetes.io/managed-by": "omnistage-operator",
                PIPELINE_LABEL: metadata["name"],
                PLAN_LABEL: plan.revision,
            },
            "ownerReferences": [owner_reference(pipeline)],
        },
        "immutable": True,
        "data": {
            PLAN_KEY: encode_plan(plan).decode(),
            SERVICES_KEY: msgspec.json.encode(dict(services), order="sorted").decode(),
        },
    }


def plan_revision(plan: Json) -> Revision:
    """The revision of a plan ConfigMap."""
    return Revision(plan["metadata"]["labels"][PLAN_LABEL])


def services_of(plan: Json) -> dict[StageName, PublishedService]:
    """Where the replicas of each stage of a plan ConfigMap are found; none where it is unreadable."""
    try:
        return msgspec.json.decode(
            plan.get("data", {}).get(SERVICES_KEY, ""), type=dict[StageName, PublishedService]
        )
    except msgspec.DecodeError:
        return {}


def stage_objects(plans: Iterable[Json]) -> frozenset[str]:
    """Names of the `Stage` objects that plans name."""
    return frozenset(service.stage for plan in plans for service in services_of(plan).values())
