"""How one engine runs on one kind of node."""

from enum import Enum
from typing import Annotated

from pydantic import Field, StringConstraints

from omnistage_common.pipeline.resources.values import (
    ByteQuantity,
    CpuQuantity,
    EngineArgs,
    EngineId,
    EnvVars,
    Image,
    LabelMap,
    Model,
    ResourceName,
)

__all__ = [
    "Accelerator",
    "ComputeResources",
    "Rdma",
    "StageRuntimeSpec",
    "TaintEffect",
    "Toleration",
    "TolerationOperator",
]


class Accelerator(Model):
    """Devices of one replica."""

    resource: ResourceName
    """Resource name of the device plugin, e.g. `nvidia.com/gpu`."""
    count: Annotated[int, Field(ge=1, le=64)] = 1
    """Devices per pod."""


class ComputeResources(Model):
    """What one pod asks of its node."""

    cpu: CpuQuantity | None = None
    """Cores, e.g. `2` or `500m`, as text."""
    memory: ByteQuantity | None = None
    """Memory, e.g. `4Gi`; request and limit."""
    accelerator: Accelerator | None = None
    """Devices; left out for CPU engines."""


class Rdma(Model):
    """Access to an RDMA network."""

    resource: ResourceName
    """Resource name of the RDMA device plugin, e.g. `rdma/hca`."""
    count: Annotated[int, Field(ge=1, le=16)] = 1
    """Devices per pod."""


class TolerationOperator(Enum):
    """How a toleration compares."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(Enum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(Model):
    """A taint that the pods tolerate."""

    key: Annotated[str, StringConstraints(max_length=316)] | None = None
    """Key of the taint; left out for all keys."""
    operator: TolerationOperator = TolerationOperator.EQUAL
    """Whether the value must be equal, or the key only exist."""
    value: Annotated[str, StringConstraints(max_length=63)] | None = None
    """Value of the taint."""
    effect: TaintEffect | None = None
    """Effect of the taint; left out for all effects."""
    toleration_seconds: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    """Seconds a pod stays once a `NoExecute` taint appears; left out for ever."""


class StageRuntimeSpec(Model):
    """How one engine runs on one kind of node."""

    engine: EngineId
    """Engine inside the image, by the name of its entry point."""
    image: Image | None = None
    """Container image; left out for the one that was installed for this engine."""
    resources: ComputeResources = ComputeResources()
    """What one pod asks of its node."""
    node_selector: LabelMap = Field(default={})
    """Labels that a node must have."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = ()
    """Taints that the pods tolerate."""
    shared_memory: ByteQuantity | None = None
    """Size of `/dev/shm`; left out for the stage's tensor slab and a margin."""
    rdma: Rdma | None = None
    """Access to an RDMA network; left out for none."""
    env: EnvVars = ()
    """Environment variables; merged over the template's by name."""
    engine_args: EngineArgs = Field(default={})
    """Arguments of the engine on this kind of node; merged over the template's by key."""
