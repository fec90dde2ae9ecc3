"""The small values that all resources are made of, each with its bound.

Every string has a pattern or a length and every list a maximum: a cluster refuses definitions whose
cost it cannot bound. `PATTERN_REMEDIES` says in words what each pattern asks for. Durations and byte
quantities stay text here, as in a cluster; `omnistage_common.pipeline.quantities` reads them.
"""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints
from pydantic.alias_generators import to_camel

from omnistage_common.ids import EngineName, ModelName, OutputName, StageName

__all__ = [
    "BYTES_PATTERN",
    "DURATION_PATTERN",
    "PATTERN_REMEDIES",
    "ByteQuantity",
    "CpuQuantity",
    "Duration",
    "EngineArgs",
    "EngineId",
    "EnvVar",
    "EnvVars",
    "Image",
    "LabelMap",
    "LimitsOverride",
    "Model",
    "ModelUri",
    "Name",
    "PortName",
    "Reference",
    "ResourceName",
    "SecretKey",
    "ServedName",
    "StageId",
    "StageLimits",
]

_DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_STAGE: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
_PORT: Final = r"^[a-z][a-z0-9_]*$"
_ENGINE: Final = r"^[a-z][a-z0-9._-]*$"
_SERVED: Final = r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$"
_URI: Final = r"^[a-z][a-z0-9+.-]*://[^\s]+$"
_ENV_NAME: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
DURATION_PATTERN: Final = r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"
BYTES_PATTERN: Final = r"^[0-9]{1,15}(Ki|Mi|Gi|Ti|k|M|G|T)?$"
_CPU: Final = r"^[0-9]{1,6}(\.[0-9]{1,3}|m)?$"
_EXTENDED_RESOURCE: Final = (
    r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
)
_IMAGE: Final = r"^[a-z0-9][A-Za-z0-9._:/@-]*$"
_DATA_KEY: Final = r"^[A-Za-z0-9._-]+$"

PATTERN_REMEDIES: Final = {
    _DNS_LABEL: "use lower-case letters, digits and `-`; start and end with a letter or digit",
    _STAGE: "use lower-case letters, digits and `-`; start with a letter",
    _PORT: "use lower-case letters, digits and `_`; start with a letter",
    _ENGINE: "write the name of an engine's entry point, e.g. `vllm`",
    _SERVED: "use letters, digits and `. _ : / @ -`; start with a letter or digit",
    _URI: "write a source with its scheme, e.g. `hf://org/name@revision`, `package://name` "
    "or `file:///path`",
    _ENV_NAME: "use letters, digits and `_`; do not start with a digit",
    DURATION_PATTERN: "write whole numbers with units, e.g. `120s`, `1m30s` or `500ms`",
    BYTES_PATTERN: "write bytes with a unit, e.g. `64Mi` or `2Gi`",
    _CPU: "write cores, e.g. `2`, `0.5` or `500m`",
    _EXTENDED_RESOURCE: "write a device plugin's resource, e.g. `nvidia.com/gpu`",
    _IMAGE: "write an image reference, e.g. `registry.example/omnistage-stage:0.1.0`",
    _DATA_KEY: "use letters, digits and `. _ -`",
}
"""Pattern -> what to write instead."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=_DNS_LABEL)]
StageId = Annotated[StageName, StringConstraints(min_length=1, max_length=32, pattern=_STAGE)]
PortName = Annotated[OutputName, StringConstraints(min_length=1, max_length=32, pattern=_PORT)]
EngineId = Annotated[EngineName, StringConstraints(min_length=1, max_length=63, pattern=_ENGINE)]
ServedName = Annotated[ModelName, StringConstraints(min_length=1, max_length=128, pattern=_SERVED)]
ModelUri = Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=_URI)]
Duration = Annotated[str, StringConstraints(min_length=2, max_length=32, pattern=DURATION_PATTERN)]
ByteQuantity = Annotated[str, StringConstraints(min_length=1, max_length=18, pattern=BYTES_PATTERN)]
CpuQuantity = Annotated[str, StringConstraints(min_length=1, max_length=12, pattern=_CPU)]
ResourceName = Annotated[
    str, StringConstraints(min_length=3, max_length=316, pattern=_EXTENDED_RESOURCE)
]
Image = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=_IMAGE)]
LabelMap = Annotated[
    dict[
        Annotated[str, StringConstraints(min_length=1, max_length=316)],
        Annotated[str, StringConstraints(max_length=63)],
    ],
    Field(max_length=64),
]
EngineArgs = Annotated[
    dict[Annotated[str, StringConstraints(min_length=1, max_length=64)], JsonValue],
    Field(max_length=64),
]
"""A free JSON object: the engine itself checks it."""


class Model(BaseModel):
    """What all models share: frozen, no unknown fields, camelCase outside, a sentence per field."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        use_attribute_docstrings=True,
    )


class Reference(Model):
    """Names another resource."""

    name: Name
    """Name of the resource; in the same namespace where the kind has one."""


class SecretKey(Model):
    """Names one key of a Secret."""

    name: Name
    """Name of the Secret, in the pipeline's namespace."""
    key: Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=_DATA_KEY)]
    """Key within the Secret."""


class EnvVar(Model):
    """An environment variable of a stage."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=_ENV_NAME)]
    """Name of the variable; unique within its list."""
    value: Annotated[str, StringConstraints(max_length=4096)] | None = None
    """Its value, as text. Exactly one of `value` and `secretKey` is set."""
    secret_key: SecretKey | None = None
    """Key of a Secret to take the value from; the value itself appears in no plan."""


EnvVars = Annotated[tuple[EnvVar, ...], Field(max_length=64)]

_MaxRunning = Annotated[int, Field(ge=1, le=65_536)]
_MaxQueued = Annotated[int, Field(ge=0, le=1_048_576)]


class StageLimits(Model):
    """Bounds of one replica."""

    max_running: _MaxRunning = 16
    """Requests in the engine at once."""
    max_queued: _MaxQueued = 256
    """Requests that wait for a place in the engine; one more is refused with 429."""
    slab_bytes: ByteQuantity = "64Mi"
    """Memory for tensors that consumers have not read yet; when it is full, producers wait."""
    device_slab_bytes: ByteQuantity = "0"
    """Memory of the engine's device (GPU) for the same tensors, and as much again for those received
    where the engine takes them there; other replicas read it by RDMA. 0: tensors leave through memory
    of the host."""


class LimitsOverride(Model):
    """Bounds of one replica, where they differ from the template's."""

    max_running: _MaxRunning | None = None
    """Requests in the engine at once."""
    max_queued: _MaxQueued | None = None
    """Requests that wait for a place in the engine; one more is refused with 429."""
    slab_bytes: ByteQuantity | None = None
    """Memory for tensors that consumers have not read yet; when it is full, producers wait."""
    device_slab_bytes: ByteQuantity | None = None
    """Memory of the engine's device (GPU) for the same tensors, and as much again for those received
    where the engine takes them there; other replicas read it by RDMA. 0: tensors leave through memory
    of the host."""
