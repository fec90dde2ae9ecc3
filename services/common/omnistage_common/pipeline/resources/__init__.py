"""The custom resources of `omnistage.io/v1alpha1`, as models.

These models are the source: the cluster's definitions, the reference page and the messages of
`omnistage validate` are derived from them, so every field has a sentence and a bound. YAML uses
camelCase, Python snake_case. What one resource alone cannot tell (names that must exist elsewhere,
cycles, one of two fields) is checked in `omnistage_common.pipeline.validation`.
"""

from omnistage_common.pipeline.resources.runtime import (
    Accelerator,
    ComputeResources,
    Rdma,
    StageRuntimeSpec,
    Toleration,
)
from omnistage_common.pipeline.resources.serving import (
    Autoscaling,
    InferencePipelineSpec,
    ModelSettings,
    Parallelism,
    ReceivedPort,
    Rollout,
    RolloutStrategy,
    StageOverride,
    StageSettings,
    StageSpec,
    Streaming,
    TimeoutSettings,
    Transfer,
)
from omnistage_common.pipeline.resources.topology import (
    ChunkPolicy,
    FinalOutput,
    Port,
    RequestInput,
    StageDefaults,
    StageTemplate,
    Topology,
    TopologyEdge,
)
from omnistage_common.pipeline.resources.values import (
    EnvVar,
    LimitsOverride,
    Model,
    Reference,
    SecretKey,
    StageLimits,
)
from omnistage_common.pipeline.resources.whole import (
    API_VERSION,
    KINDS,
    ClusterMetadata,
    InferencePipeline,
    NamespacedMetadata,
    PipelineTemplate,
    Resource,
    Stage,
    StageRuntime,
)

__all__ = [
    "API_VERSION",
    "KINDS",
    "Accelerator",
    "Autoscaling",
    "ChunkPolicy",
    "ClusterMetadata",
    "ComputeResources",
    "EnvVar",
    "FinalOutput",
    "InferencePipeline",
    "InferencePipelineSpec",
    "LimitsOverride",
    "Model",
    "ModelSettings",
    "NamespacedMetadata",
    "Parallelism",
    "PipelineTemplate",
    "Port",
    "Rdma",
    "ReceivedPort",
    "Reference",
    "RequestInput",
    "Resource",
    "Rollout",
    "RolloutStrategy",
    "SecretKey",
    "Stage",
    "StageDefaults",
    "StageLimits",
    "StageOverride",
    "StageRuntime",
    "StageRuntimeSpec",
    "StageSettings",
    "StageSpec",
    "StageTemplate",
    "Streaming",
    "TimeoutSettings",
    "Toleration",
    "Topology",
    "TopologyEdge",
    "Transfer",
]
