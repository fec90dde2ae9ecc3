"""How a plan is published in a cluster: what an operator writes, and gateways look for.

Neither knows the other; what both have to call by one name stands here.
"""

from typing import Final

from msgspec import Struct

from omnistage_common.ids import Revision

__all__ = [
    "GATEWAY_NAME",
    "NAME_LABEL",
    "PIPELINE_LABEL",
    "PLAN_KEY",
    "PLAN_LABEL",
    "SERVICES_KEY",
    "STAGE_LABEL",
    "PublishedService",
    "gateway_manager",
]

NAME_LABEL: Final = "app.kubernetes.io/name"
GATEWAY_NAME: Final = "omnistage-gateway"
"""Value of `NAME_LABEL` on the pods of gateways."""
PIPELINE_LABEL: Final = "omnistage.io/pipeline"
"""On what belongs to a pipeline: its name."""
PLAN_LABEL: Final = "omnistage.io/plan"
"""On a plan's ConfigMap: the pipeline's revision."""
STAGE_LABEL: Final = "omnistage.io/stage"
"""On what belongs to a stage, and so on the EndpointSlices of its Services: name of the `Stage`."""
PLAN_KEY: Final = "plan.json"
"""In a plan's ConfigMap: the plan."""
SERVICES_KEY: Final = "services.json"
"""In a plan's ConfigMap: stage of the plan -> `PublishedService`."""


class PublishedService(Struct, frozen=True, kw_only=True):
    """Where the replicas of one stage of a plan are found."""

    stage: str
    """Name of the `Stage`."""
    revision: Revision
    """Of the stage."""
    service: str
    """Name of the headless Service."""


def gateway_manager(pod: str) -> str:
    """Field manager of a gateway, by the name of its pod."""
    return f"{GATEWAY_NAME}/{pod}"
