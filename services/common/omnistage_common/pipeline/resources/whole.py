"""The four kinds, each with its metadata and its spec.

`PipelineTemplate` and `StageRuntime` belong to the cluster, `InferencePipeline` and `Stage` to a
namespace. Status is not modelled here: it is observed, never written by people.
"""

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from omnistage_common.pipeline.resources.runtime import StageRuntimeSpec
from omnistage_common.pipeline.resources.serving import InferencePipelineSpec, StageSpec
from omnistage_common.pipeline.resources.topology import Topology
from omnistage_common.pipeline.resources.values import LabelMap, Model, Name

__all__ = [
    "API_VERSION",
    "KINDS",
    "ClusterMetadata",
    "InferencePipeline",
    "NamespacedMetadata",
    "PipelineTemplate",
    "Resource",
    "Stage",
    "StageRuntime",
]

API_VERSION: Final = "omnistage.io/v1alpha1"
"""The one version of the API."""


class ClusterMetadata(Model):
    """Identity of a resource that belongs to the whole cluster."""

    name: Name
    """Name, unique within its kind."""
    labels: LabelMap = Field(default={})
    """Labels, to select by."""
    annotations: Annotated[
        dict[str, Annotated[str, StringConstraints(max_length=65_536)]], Field(max_length=64)
    ] = Field(default={})
    """Notes for people and tools; nothing here changes what runs."""


class NamespacedMetadata(ClusterMetadata):
    """Identity of a resource that belongs to a namespace."""

    namespace: Name = "default"
    """Namespace of the resource."""


class PipelineTemplate(Model):
    """The topology of a model: stages, edges and outputs. Cluster-scoped, immutable."""

    api_version: Literal["omnistage.io/v1alpha1"] = API_VERSION
    """Version of the API."""
    kind: Literal["PipelineTemplate"] = "PipelineTemplate"
    """Kind of the resource."""
    metadata: ClusterMetadata
    """Name and labels."""
    spec: Topology
    """The graph."""


class StageRuntime(Model):
    """How one engine runs on one kind of node. Cluster-scoped."""

    api_version: Literal["omnistage.io/v1alpha1"] = API_VERSION
    """Version of the API."""
    kind: Literal["StageRuntime"] = "StageRuntime"
    """Kind of the resource."""
    metadata: ClusterMetadata
    """Name and labels."""
    spec: StageRuntimeSpec
    """Engine, image, resources and placement."""


class InferencePipeline(Model):
    """One model, served: a template with everything that differs from its defaults. Namespaced."""

    api_version: Literal["omnistage.io/v1alpha1"] = API_VERSION
    """Version of the API."""
    kind: Literal["InferencePipeline"] = "InferencePipeline"
    """Kind of the resource."""
    metadata: NamespacedMetadata
    """Name, namespace and labels."""
    spec: InferencePipelineSpec
    """What to serve, and how."""


class Stage(Model):
    """A stage that stands by itself; several pipelines can share it by `stageRef`. Namespaced."""

    api_version: Literal["omnistage.io/v1alpha1"] = API_VERSION
    """Version of the API."""
    kind: Literal["Stage"] = "Stage"
    """Kind of the resource."""
    metadata: NamespacedMetadata
    """Name, namespace and labels."""
    spec: StageSpec
    """What it computes, and how."""


Resource = PipelineTemplate | StageRuntime | InferencePipeline | Stage
"""Any of the four kinds."""

KINDS: Final[dict[str, type[Resource]]] = {
    "InferencePipeline": InferencePipeline,
    "PipelineTemplate": PipelineTemplate,
    "Stage": Stage,
    "StageRuntime": StageRuntime,
}
"""Kind -> model."""
