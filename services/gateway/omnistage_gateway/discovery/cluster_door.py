"""What this gateway needs of a Kubernetes API server, and nothing more.

Three kinds of objects are watched and one part of one status is written. How that is done (lists,
watches, their breaks, credentials) is the business of whoever stands behind `Cluster`.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Protocol

__all__ = ["Cluster", "ClusterListener", "Manifest", "Watched"]

Manifest = Mapping[str, Any]
"""An object as the API server has it. Read only."""


class Watched(Enum):
    """What is watched."""

    PIPELINES = "InferencePipeline"
    PLANS = "ConfigMap"
    """Those with the label `omnistage.io/plan`."""
    REPLICAS = "EndpointSlice"
    """Those with the label `omnistage.io/stage`."""


class ClusterListener(Protocol):
    """Whoever wants to know what there is."""

    def changed(self, kind: Watched, manifest: Manifest) -> None:
        """An object is there, new or changed or seen again as it was."""

    def deleted(self, kind: Watched, manifest: Manifest) -> None:
        """An object is gone; as it was last."""

    def synced(self) -> None:
        """All that was there at the start has been told. Called once."""


class Cluster(Protocol):
    """The API server, for one gateway."""

    async def check(self) -> None:
        """Returns when it answers and lets this gateway read.

        Raises:
            OmnistageError: It does not; says what to mend.
        """

    async def watch(self, listener: ClusterListener) -> None:
        """Tells what there is and what changes, until cancelled.

        While the API server is away it says nothing, and afterwards all that was missed.
        """

    async def apply_status(self, manifest: Manifest) -> bool:
        """Server-side apply on a pipeline's status, with a field manager that is this gateway's alone.

        Args:
            manifest: The identity of the pipeline, with its UID, and the fields that are ours.

        Returns:
            False when there is no such pipeline any more.

        Raises:
            OmnistageError: It was not done, or nobody knows whether.
        """
