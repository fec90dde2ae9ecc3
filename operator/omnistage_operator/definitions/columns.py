"""How each kind appears to people: names, scope, columns of `kubectl get`, subresources."""

from enum import Enum
from typing import Any, Final

from msgspec import Struct

__all__ = ["APPEARANCES", "CATEGORY", "GROUP", "VERSION", "Appearance", "Column", "Scope"]

GROUP: Final = "omnistage.io"
VERSION: Final = "v1alpha1"
CATEGORY: Final = "omnistage"
"""`kubectl get omnistage` lists all kinds."""


class Scope(Enum):
    """Whom a resource belongs to."""

    CLUSTER = "Cluster"
    NAMESPACED = "Namespaced"


class Column(Struct, frozen=True, kw_only=True):
    """One column of `kubectl get`."""

    name: str
    path: str
    """JSON path below the resource."""
    description: str
    type: str = "string"
    wide: bool = False
    """Shown with `-o wide` only."""

    def as_json(self) -> dict[str, Any]:
        """The column as it stands in a definition."""
        priority = {"priority": 1} if self.wide else {}
        return {
            "name": self.name,
            "type": self.type,
            "description": self.description,
            "jsonPath": self.path,
            **priority,
        }


class Appearance(Struct, frozen=True, kw_only=True):
    """How one kind appears."""

    plural: str
    short_names: tuple[str, ...]
    scope: Scope
    columns: tuple[Column, ...]
    selectable: tuple[str, ...] = ()
    """Paths that `kubectl get --field-selector` takes."""
    scale: bool = False
    """Whether `kubectl scale` and autoscalers act on it."""


_AGE: Final = Column(
    name="Age",
    type="date",
    path=".metadata.creationTimestamp",
    description="Time since it was made.",
)
_READY: Final = Column(
    name="Ready",
    path='.status.conditions[?(@.type=="Ready")].status',
    description="Whether the spec as it is now is served.",
)


def _of_ready(name: str, field: str, description: str, *, wide: bool = False) -> Column:
    path = f'.status.conditions[?(@.type=="Ready")].{field}'
    return Column(name=name, path=path, description=description, wide=wide)


APPEARANCES: Final[dict[str, Appearance]] = {
    "InferencePipeline": Appearance(
        plural="inferencepipelines",
        short_names=("ipl",),
        scope=Scope.NAMESPACED,
        columns=(
            _READY,
            _of_ready("Reason", "reason", "Why it is ready or not, in one word."),
            Column(
                name="Stages",
                path=".status.stagesReady",
                description="Stages that are updated, ready and routable, of all stages.",
            ),
            Column(
                name="Revision",
                path=".status.currentRevision",
                description="Revision that new requests go to.",
            ),
            Column(name="URL", path=".status.url", description="Where clients reach it."),
            _AGE,
            Column(
                name="Template",
                path=".spec.template.name",
                description="Template that it serves.",
                wide=True,
            ),
            Column(
                name="Target",
                path=".status.targetRevision",
                description="Revision that the spec describes.",
                wide=True,
            ),
            _of_ready("Message", "message", "Why it is ready or not, in a sentence.", wide=True),
        ),
        selectable=(".spec.template.name",),
    ),
    "PipelineTemplate": Appearance(
        plural="pipelinetemplates",
        short_names=("ptpl",),
        scope=Scope.CLUSTER,
        columns=(_AGE,),
    ),
    "Stage": Appearance(
        plural="stages",
        short_names=("stg",),
        scope=Scope.NAMESPACED,
        columns=(
            _READY,
            Column(
                name="Reason", path=".status.reason", description="Why it is as it is, in one word."
            ),
            Column(
                name="Desired",
                type="integer",
                path=".spec.replicas",
                description="Replicas that should be there.",
            ),
            Column(
                name="Replicas",
                type="integer",
                path=".status.readyReplicas",
                description="Replicas whose engine has computed something real.",
            ),
            Column(
                name="Revision",
                path=".status.revision",
                description="Revision that the spec describes.",
            ),
            Column(name="Engine", path=".spec.engine", description="Engine that computes it."),
            _AGE,
            Column(
                name="Runtime",
                path=".spec.runtime.name",
                description="Runtime that it runs on.",
                wide=True,
            ),
            Column(
                name="Message",
                path=".status.message",
                description="Why it is as it is, in a sentence.",
                wide=True,
            ),
        ),
        selectable=(".spec.runtime.name",),
        scale=True,
    ),
    "StageRuntime": Appearance(
        plural="stageruntimes",
        short_names=("srt",),
        scope=Scope.CLUSTER,
        columns=(
            Column(name="Engine", path=".spec.engine", description="Engine inside the image."),
            Column(
                name="Accelerator",
                path=".spec.resources.accelerator.resource",
                description="Devices that its pods ask for.",
            ),
            Column(
                name="Count",
                type="integer",
                path=".spec.resources.accelerator.count",
                description="Devices per pod.",
            ),
            _AGE,
            Column(
                name="Image",
                path=".spec.image",
                description="Container image, where it names one.",
                wide=True,
            ),
        ),
        selectable=(".spec.engine",),
    ),
}
"""Kind -> how it appears."""
