"""What a cluster says about pipelines and stages: observed, never written by people.

These models shape the `status` of the definitions and are what the operator and the gateways write.
They stand apart from the kinds: a file that was exported from a cluster has a status, and what reads
it leaves that aside. Unlike what people write, a status may hold more than this release knows, since
a newer operator may have written it. It holds nothing that changes without a reason (no counters, no
heartbeats), and it is always computed anew from what is there.
"""

from enum import Enum
from typing import Annotated, Final

from pydantic import ConfigDict, Field, StringConstraints

from omnistage_common.ids import Revision
from omnistage_common.pipeline.resources.values import Model, Name, StageId

__all__ = [
    "MAX_MESSAGE",
    "REASON_PATTERN",
    "STATUSES",
    "Condition",
    "ConditionStatus",
    "GatewayStatus",
    "InferencePipelineStatus",
    "Observed",
    "PipelineRevisionStatus",
    "PipelineStageStatus",
    "RevisionPhase",
    "StageReason",
    "StageRevisionStatus",
    "StageStatus",
]

REASON_PATTERN: Final = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
"""Form of a reason, as for conditions of any kind; which words there are stays open."""
MAX_MESSAGE: Final = 4096
"""Characters of a message; who writes a longer one cuts it."""
_MOMENT: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$"

_Count = Annotated[int, Field(ge=0, le=4096)]
_Generation = Annotated[int, Field(ge=0, le=9_007_199_254_740_991)]
_Reason = Annotated[str, StringConstraints(max_length=64, pattern=REASON_PATTERN)]
_OpenReason = Annotated[str, StringConstraints(max_length=1024, pattern=REASON_PATTERN)]
_Message = Annotated[str, StringConstraints(max_length=MAX_MESSAGE)]
_Digest = Annotated[
    Revision, StringConstraints(min_length=1, max_length=64, pattern=r"^[a-z0-9]+$")
]
_PodName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
]
_Share = Annotated[str, StringConstraints(max_length=9, pattern=r"^[0-9]+/[0-9]+$")]
_Url = Annotated[str, StringConstraints(max_length=2048, pattern=r"^https?://[^\s]+$")]
_Selector = Annotated[str, StringConstraints(max_length=1024)]
_ConditionType = Annotated[
    str, StringConstraints(min_length=1, max_length=316, pattern=r"^[A-Za-z0-9][-A-Za-z0-9_./]*$")
]


class Observed(Model):
    """What all parts of a status share: fields of a newer release are left aside."""

    model_config = ConfigDict(extra="ignore")


class ConditionStatus(Enum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class StageReason(Enum):
    """Why a stage, or a pipeline, is as it is; the list stays open in a cluster."""

    READY = "Ready"
    """Every replica is updated, ready and routable."""
    PROGRESSING = "Progressing"
    """On the way, and nothing is wrong."""
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    """No node has room, or the resource that is asked for."""
    IMAGE_PULL = "ImagePull"
    """The image cannot be had."""
    MODEL_LOADING = "ModelLoading"
    """The engine loads its model."""
    CRASH_LOOP = "CrashLoop"
    """The process ends again and again."""
    OOM_KILLED = "OOMKilled"
    """The process used more memory than it may, and was ended."""
    ENGINE_ARGS_REJECTED = "EngineArgsRejected"
    """The engine refuses its arguments."""
    WEIGHTS_INVALID = "WeightsInvalid"
    """Model files are missing or broken."""
    MISSING_DEPENDENCY = "MissingDependency"
    """The image lacks a package that the engine needs."""
    CONFIG_ERROR = "ConfigError"
    """A Secret, or a key of one, that the stage names is not there."""
    VOLUME_NOT_MOUNTED = "VolumeNotMounted"
    """A volume of the pods cannot be mounted."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """The namespace's quota leaves no room for the pods."""
    PODS_REFUSED = "PodsRefused"
    """The cluster does not let the pods in."""
    EVICTED = "Evicted"
    """A node put the pods out."""
    GRAPH_INVALID = "GraphInvalid"
    """The graph, or what a stage is set to, does not hold together."""
    TEMPLATE_MISSING = "TemplateMissing"
    """There is no such `PipelineTemplate`."""
    RUNTIME_MISSING = "RuntimeMissing"
    """There is no such `StageRuntime`."""
    LEADER_WORKER_SET_MISSING = "LeaderWorkerSetMissing"
    """The stage's replicas span nodes, and the cluster does not know LeaderWorkerSet."""
    STAGE_MISSING = "StageMissing"
    """There is no such `Stage`."""
    NOT_ROUTABLE = "NotRoutable"
    """Replicas are ready, but a gateway does not reach them yet."""
    SCALED_TO_ZERO = "ScaledToZero"
    """No replica is wanted."""
    DRAINING = "Draining"
    """An old revision finishes its requests."""


class RevisionPhase(Enum):
    """Where a revision is in its life."""

    PREPARING = "Preparing"
    """Its replicas come up; it takes no requests yet."""
    SERVING = "Serving"
    """New requests go to it."""
    DRAINING = "Draining"
    """It finishes the requests that it has."""


class Condition(Observed):
    """One thing that holds, or does not."""

    type: _ConditionType
    """What it is about, e.g. `Ready`, `Reconciling`, `Stalled` or `GraphValid`."""
    status: ConditionStatus
    """Whether it holds."""
    observed_generation: _Generation | None = None
    """Generation of the spec that this was seen for."""
    last_transition_time: Annotated[
        str,
        StringConstraints(max_length=40, pattern=_MOMENT),
        Field(json_schema_extra={"format": "date-time"}),
    ]
    """When `status` last changed."""
    reason: _OpenReason
    """Why, in one word."""
    message: _Message = ""
    """Why, in a sentence with what to do about it."""


_Conditions = Annotated[tuple[Condition, ...], Field(max_length=16)]


class PipelineStageStatus(Observed):
    """One stage of a pipeline, as its `Stage` has it."""

    name: StageId
    """Name of the stage in the topology."""
    stage: Name | None = None
    """Name of the `Stage` that serves it."""
    desired: _Count = 0
    """Replicas that should be there."""
    ready: _Count = 0
    """Replicas whose engine has computed something real."""
    routable: _Count = 0
    """Ready replicas that every gateway reaches."""
    updated: _Count = 0
    """Replicas of the target revision."""
    revision: _Digest | None = None
    """Revision of the stage that the pipeline's target revision asks for."""
    reason: _Reason | None = None
    """Why it is as it is, in one word."""
    message: _Message = ""
    """The same in a sentence, with the scheduler's, kubelet's or engine's own words."""


class PipelineRevisionStatus(Observed):
    """A revision of a pipeline that is not gone yet."""

    revision: _Digest
    """The revision."""
    phase: RevisionPhase
    """Where it is in its life."""


class GatewayStatus(Observed):
    """What one gateway says; each gateway writes its own entry and no other."""

    name: _PodName
    """Name of the gateway's pod."""
    turn: _Generation = 0
    """The pipeline's `turn` that this gateway knows."""
    serving: _Digest | None = None
    """Revision that new requests go to at this gateway."""
    routable: Annotated[tuple[_Digest, ...], Field(max_length=16)] = ()
    """Revisions all of whose stages this gateway reaches."""
    in_use: Annotated[tuple[_Digest, ...], Field(max_length=16)] = ()
    """Revisions that requests of this gateway still run on."""


class InferencePipelineStatus(Observed):
    """What is observed of a pipeline."""

    observed_generation: _Generation | None = None
    """Generation of the spec that this status describes."""
    current_revision: _Digest | None = None
    """Revision that new requests go to."""
    turn: _Generation = 0
    """How often `currentRevision` has changed. What a gateway says counts for the turn that it names:
    a pipeline may come back to a revision that it has left."""
    target_revision: _Digest | None = None
    """Revision that the spec describes."""
    conditions: _Conditions = ()
    """What holds; `Ready` says whether the spec as it is now is served."""
    stages_ready: _Share | None = None
    """Stages that are updated, ready and routable, of all stages, e.g. `3/3`."""
    stages: Annotated[tuple[PipelineStageStatus, ...], Field(max_length=16)] = ()
    """The stages, each with the reason why it is as it is."""
    revisions: Annotated[tuple[PipelineRevisionStatus, ...], Field(max_length=16)] = ()
    """Revisions that are not gone yet."""
    gateways: Annotated[tuple[GatewayStatus, ...], Field(max_length=64)] = ()
    """What each gateway says."""
    url: _Url | None = None
    """Where clients reach the pipeline."""


class StageRevisionStatus(Observed):
    """A revision of a stage that is not gone yet."""

    revision: _Digest
    """The revision."""
    desired: _Count = 0
    """Replicas that should be there."""
    ready: _Count = 0
    """Replicas whose engine has computed something real."""
    updated: _Count = 0
    """Replicas whose pods are as this revision says."""
    phase: RevisionPhase
    """Where it is in its life."""


class StageStatus(Observed):
    """What is observed of a stage."""

    observed_generation: _Generation | None = None
    """Generation of the spec that this status describes."""
    conditions: _Conditions = ()
    """What holds; `Ready` says whether the spec as it is now is served."""
    replicas: _Count = 0
    """Replicas that are there, of all revisions."""
    ready_replicas: _Count = 0
    """Replicas whose engine has computed something real, of all revisions."""
    selector: _Selector | None = None
    """Label selector of the replicas, as text; autoscalers find the pods by it."""
    revision: _Digest | None = None
    """Revision that the spec describes."""
    reason: _Reason | None = None
    """Why the stage is as it is, in one word."""
    message: _Message = ""
    """The same in a sentence, with the scheduler's, kubelet's or engine's own words."""
    revisions: Annotated[tuple[StageRevisionStatus, ...], Field(max_length=16)] = ()
    """Revisions that are not gone yet."""


STATUSES: Final[dict[str, type[Observed]]] = {
    "InferencePipeline": InferencePipelineStatus,
    "Stage": StageStatus,
}
"""Kind -> model of its status; the other kinds have none."""
