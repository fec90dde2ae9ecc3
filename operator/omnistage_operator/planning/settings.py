"""What an installation decides for all stages: images, and who may reach them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from omnistage_common.ids import EngineName

__all__ = ["OperatorSettings", "PullPolicy"]


class PullPolicy(Enum):
    """When a node pulls an image that it may have."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorSettings:
    """See the module."""

    stage_image: str
    """Image of stages whose runtime names none and whose engine has none of its own."""
    engine_images: Mapping[EngineName, str] = field(default_factory=dict)
    """Engine -> image of stages whose runtime names none."""
    pull_policy: PullPolicy | None = None
    """None for what a cluster does by itself."""
    pull_secrets: tuple[str, ...] = ()
    """Names of Secrets, in the namespace of each stage, that its images are pulled with."""
    gateway_namespace: str
    """Where the gateways run: they alone may send requests to stages."""
    gateway_url: str = ""
    """Where clients reach the gateways; empty when that is not known."""
    leader_worker_sets: bool = False
    """Whether the cluster knows LeaderWorkerSet, which replicas that span nodes need."""

    def image_of(self, engine: EngineName) -> str:
        """The image of a stage whose runtime names none."""
        return self.engine_images.get(engine, self.stage_image)
