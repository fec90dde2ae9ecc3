"""What users write: which model, which runtimes, how many replicas, which bounds.

Everything here is optional but the template: only what differs from it is written. A field that is
left out is None (or empty) rather than a default, so that the layer below shows through.
"""

from enum import Enum
from typing import Annotated

from pydantic import Field

from omnistage_common.payloads import PayloadKind
from omnistage_common.pipeline.plan import EdgeMode, Execution, TransportChoice
from omnistage_common.pipeline.resources.topology import Port, RequestInput, Topology
from omnistage_common.pipeline.resources.values import (
    Duration,
    EngineArgs,
    EngineId,
    EnvVars,
    LimitsOverride,
    Model,
    ModelUri,
    PortName,
    Reference,
    ServedName,
    StageId,
)

__all__ = [
    "Autoscaling",
    "InferencePipelineSpec",
    "ModelSettings",
    "Parallelism",
    "ReceivedPort",
    "Rollout",
    "RolloutStrategy",
    "StageOverride",
    "StageSettings",
    "StageSpec",
    "Streaming",
    "TimeoutSettings",
    "Transfer",
]

_Ways = Annotated[int, Field(ge=1, le=64)]


class Autoscaling(Model):
    """How the number of replicas follows the load."""

    min_replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    """Fewest replicas. An autoscaler cannot wake a stage that has none."""
    max_replicas: Annotated[int, Field(ge=1, le=1024)]
    """Most replicas."""
    target_queue_wait: Duration = "200ms"
    """How long a request may wait for a place in an engine before a replica is added."""


class Parallelism(Model):
    """How one replica spreads over devices."""

    tensor: _Ways = 1
    """Devices that share every layer."""
    pipeline: _Ways = 1
    """Groups of layers, each on devices of its own."""
    data: _Ways = 1
    """Copies of the model within one replica."""
    nodes: _Ways = 1
    """Nodes that the devices are spread over, as many on each. More than one makes each replica a gang
    of pods that start and end together; the cluster needs LeaderWorkerSet for it."""


class StageSettings(Model):
    """How a stage runs, where it differs from the template's defaults."""

    replicas: Annotated[int, Field(ge=0, le=1024)] | None = None
    """Number of replicas. At most one of `replicas` and `autoscaling` is set."""
    autoscaling: Autoscaling | None = None
    """How the number of replicas follows the load."""
    runtime: Reference | None = None
    """`StageRuntime` that the stage runs on."""
    parallelism: Parallelism | None = None
    """How one replica spreads over devices."""
    model: ModelUri | None = None
    """Model source of this stage alone."""
    engine_args: EngineArgs = Field(default={})
    """Arguments of the engine, which checks them; merged over the runtime's by key."""
    env: EnvVars = ()
    """Environment variables; merged over the runtime's by name."""
    limits: LimitsOverride | None = None
    """Bounds of one replica."""


class Transfer(Model):
    """How tensors move between stages."""

    transport: TransportChoice = TransportChoice.AUTO
    """`Auto`: the best that each pair of replicas can do. `RDMA`, `TCP`: Mooncake, over that.
    `SharedMemory`: within a host only. `Stream`: a gRPC byte stream, always."""


class ReceivedPort(Model):
    """Something a stage takes from other stages."""

    name: PortName
    """Name of the output of the producer, which is also the name under which it arrives."""
    kind: PayloadKind
    """What it is."""
    mode: EdgeMode = EdgeMode.FULL
    """`Full`: once, when the producer has ended. `Stream`: chunk by chunk, while it runs."""
    context_frames: Annotated[int, Field(ge=0, le=1024)] = 0
    """Frames before a chunk that a decoder without state looks at again; 0 for one that keeps what
    it needs."""


class StageSpec(StageSettings):
    """A stage that stands by itself, so that several pipelines can share it."""

    replicas: Annotated[int, Field(ge=0, le=1024)] | None = None
    """Number of replicas; where `autoscaling` is set, the autoscaler writes it."""
    execution: Execution
    """How it computes; a pipeline that names it must expect the same."""
    engine: EngineId | None = None
    """Engine that computes the stage; a runtime, where one is named, must run the same."""
    consumes: Annotated[tuple[RequestInput, ...], Field(max_length=8)] = ()
    """What it takes from the request itself."""
    receives: Annotated[tuple[ReceivedPort, ...], Field(max_length=32)] = ()
    """What it takes from other stages."""
    produces: Annotated[tuple[Port, ...], Field(min_length=1, max_length=8)]
    """What it makes."""
    drain: Duration = "30s"
    """Grace for running requests when a replica goes."""
    transfer: Transfer = Transfer()
    """How it may read tensors of other stages."""


class StageOverride(StageSettings):
    """A stage of the pipeline, where it differs from the template."""

    name: StageId
    """Name of a stage of the topology."""
    stage_ref: Reference | None = None
    """`Stage` in the same namespace that serves here, instead of one made for this pipeline."""


class ModelSettings(Model):
    """Which model, and under which names."""

    source: ModelUri | None = None
    """Model source for every stage that has none of its own, e.g. `hf://org/name@revision`."""
    served_names: Annotated[tuple[ServedName, ...], Field(max_length=16)] = ()
    """Names that clients write in `model`; left out for the pipeline's own name."""


class Streaming(Model):
    """How stages hand over while they run."""

    chunked: bool = True
    """Whether `Stream` edges deliver chunk by chunk; false makes each of them `Full`,
    without its `chunk`."""


class TimeoutSettings(Model):
    """How long things may take."""

    request: Duration = "120s"
    """From a request's head to its last byte; afterwards the client gets 504."""
    drain: Duration = "30s"
    """Grace for running requests when a replica goes."""


class RolloutStrategy(Enum):
    """How a new revision replaces an old one."""

    SURGE = "Surge"
    """New replicas serve before old ones go; needs room for both."""
    IN_PLACE = "InPlace"
    """Old replicas go first; for scarce accelerators."""


class Rollout(Model):
    """How a new revision replaces an old one."""

    strategy: RolloutStrategy = RolloutStrategy.SURGE
    """`Surge`: new replicas serve before old ones go. `InPlace`: old ones go first, for scarce
    accelerators."""


class InferencePipelineSpec(Model):
    """One model, served."""

    template: Reference | None = None
    """`PipelineTemplate` to serve. Exactly one of `template` and `topology` is set."""
    topology: Topology | None = None
    """A graph of the pipeline's own, for a custom pipeline."""
    model: ModelSettings = ModelSettings()
    """Which model, and under which names."""
    stages: Annotated[tuple[StageOverride, ...], Field(max_length=16)] = ()
    """Stages, by name, where they differ from the template."""
    streaming: Streaming = Streaming()
    """How stages hand over while they run."""
    timeouts: TimeoutSettings = TimeoutSettings()
    """How long things may take."""
    transfer: Transfer = Transfer()
    """How tensors move between stages."""
    rollout: Rollout = Rollout()
    """How a new revision replaces an old one."""
