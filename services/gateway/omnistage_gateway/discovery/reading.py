"""Reads what an API server holds, into values that the gateway knows. No I/O.

Anybody with the right to may have written these objects, so everything in them is checked here; what
is wrong is said in words that name the field. Fields that this release does not know are left aside.
"""

from datetime import datetime
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from omnistage_common.addresses import Address
from omnistage_common.errors import InvalidPipeline
from omnistage_common.ids import PipelineName, ReplicaId, Revision, StageName
from omnistage_common.pipeline.plan import PipelinePlan, decode_plan
from omnistage_common.pipeline.published import (
    PIPELINE_LABEL,
    PLAN_KEY,
    PLAN_LABEL,
    SERVICES_KEY,
    STAGE_LABEL,
    PublishedService,
)
from omnistage_gateway.discovery.cluster_door import Manifest
from omnistage_gateway.discovery.source import StageService
from omnistage_gateway.pipelines.pipeline import PipelineKey
from omnistage_gateway.pipelines.serving import Acknowledgement
from omnistage_gateway.replicas.endpoints import ReplicaEndpoint, ServiceKey

__all__ = [
    "PORT_NAME",
    "SERVICE_LABEL",
    "SeenPipeline",
    "SeenPlan",
    "SeenSlice",
    "name_of",
    "read_pipeline",
    "read_plan",
    "read_slice",
    "uid_of",
]

SERVICE_LABEL: Final = "kubernetes.io/service-name"
"""On a slice: name of its Service."""
PORT_NAME: Final = "grpc"
_DRAINING: Final = "Draining"
_IP: Final = frozenset({"IPv4", "IPv6"})

T = TypeVar("T")


class SeenPipeline(Struct, frozen=True, kw_only=True):
    """What an InferencePipeline says to gateways."""

    key: PipelineKey
    uid: str
    created: int
    """Seconds since the epoch."""
    current: Revision | None
    draining: frozenset[Revision]
    turn: int
    said: Acknowledgement | None
    """What stands there of this gateway."""


class SeenPlan(Struct, frozen=True, kw_only=True):
    """What a plan's ConfigMap says."""

    key: PipelineKey
    plan: PipelinePlan
    services: dict[StageName, StageService]


class SeenSlice(Struct, frozen=True, kw_only=True):
    """What an EndpointSlice says: some of a service's replicas, those that should get requests."""

    service: ServiceKey
    endpoints: tuple[ReplicaEndpoint, ...]


class _Metadata(Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    namespace: str
    uid: str = ""
    creation_timestamp: datetime | None = None
    labels: dict[str, str] = {}


class _Revision(Struct, frozen=True, kw_only=True):
    revision: Revision
    phase: str


class _Entry(Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    turn: int = 0
    serving: Revision | None = None
    routable: tuple[Revision, ...] = ()
    in_use: tuple[Revision, ...] = ()


class _Status(Struct, frozen=True, kw_only=True, rename="camel"):
    current_revision: Revision | None = None
    turn: int = 0
    revisions: tuple[_Revision, ...] = ()
    gateways: tuple[_Entry, ...] = ()


class _Pipeline(Struct, frozen=True, kw_only=True):
    metadata: _Metadata
    status: _Status = _Status()


class _ConfigMap(Struct, frozen=True, kw_only=True):
    metadata: _Metadata
    data: dict[str, str] = {}


class _Conditions(Struct, frozen=True, kw_only=True):
    ready: bool | None = None
    """None counts as ready, as Kubernetes says."""
    terminating: bool | None = None

    @property
    def takes_requests(self) -> bool:
        return self.ready is not False and not self.terminating


class _Target(Struct, frozen=True, kw_only=True):
    uid: str = ""
    name: str = ""


class _Endpoint(Struct, frozen=True, kw_only=True, rename="camel"):
    addresses: tuple[str, ...] = ()
    conditions: _Conditions = _Conditions()
    target_ref: _Target | None = None


class _Port(Struct, frozen=True, kw_only=True):
    name: str | None = None
    port: int | None = None


class _Slice(Struct, frozen=True, kw_only=True, rename="camel"):
    metadata: _Metadata
    address_type: str = "IPv4"
    endpoints: tuple[_Endpoint, ...] | None = ()
    ports: tuple[_Port, ...] | None = ()


def name_of(manifest: Manifest) -> tuple[str, str]:
    """Namespace and name of an object, whatever else is in it."""
    metadata = manifest.get("metadata") or {}
    return str(metadata.get("namespace", "")), str(metadata.get("name", ""))


def uid_of(manifest: Manifest) -> str:
    """UID of an object, whatever else is in it."""
    return str((manifest.get("metadata") or {}).get("uid", ""))


def read_pipeline(manifest: Manifest, gateway: str) -> SeenPipeline:
    """What an InferencePipeline says.

    Args:
        manifest: The object.
        gateway: Name of this gateway.

    Raises:
        InvalidPipeline: It is not as it should be.
    """
    seen = _read(manifest, _Pipeline)
    metadata, status = seen.metadata, seen.status
    created = metadata.creation_timestamp
    return SeenPipeline(
        key=PipelineKey(namespace=metadata.namespace, name=PipelineName(metadata.name)),
        uid=metadata.uid,
        created=int(created.timestamp()) if created is not None else 0,
        current=status.current_revision or None,
        draining=frozenset(each.revision for each in status.revisions if each.phase == _DRAINING),
        turn=status.turn,
        said=next((_said(entry) for entry in status.gateways if entry.name == gateway), None),
    )


def _said(entry: _Entry) -> Acknowledgement:
    return Acknowledgement(
        turn=entry.turn,
        serving=entry.serving,
        routable=tuple(sorted(entry.routable)),
        in_use=tuple(sorted(entry.in_use)),
    )


def read_plan(manifest: Manifest) -> SeenPlan:
    """What a plan's ConfigMap says.

    Raises:
        InvalidPipeline: It holds no plan, or another one than it says, or leaves out a service.
    """
    seen = _read(manifest, _ConfigMap)
    metadata = seen.metadata
    try:
        plan = decode_plan(seen.data.get(PLAN_KEY, "").encode(errors="replace"))
    except msgspec.DecodeError as malformed:
        raise InvalidPipeline(
            f"`plan.json` is not a plan: {malformed}", field="data"
        ) from malformed
    try:
        found = msgspec.json.decode(
            seen.data.get(SERVICES_KEY, "").encode(errors="replace"),
            type=dict[StageName, PublishedService],
        )
    except msgspec.DecodeError as malformed:
        raise InvalidPipeline(
            f"`services.json` does not name services: {malformed}", field="data"
        ) from malformed
    said = (
        metadata.namespace,
        metadata.labels.get(PIPELINE_LABEL),
        metadata.labels.get(PLAN_LABEL),
    )
    if said != (plan.namespace, plan.name, plan.revision):
        raise InvalidPipeline(
            f"`plan.json` is of {plan.namespace}/{plan.name} at {plan.revision}, which is not what"
            " namespace and labels say",
            field="data",
        )
    missing = [stage.name for stage in plan.stages if stage.name not in found]
    if missing:
        raise InvalidPipeline(f"`services.json` leaves out: {', '.join(missing)}", field="data")
    return SeenPlan(
        key=PipelineKey(namespace=plan.namespace, name=plan.name),
        plan=plan,
        services={
            name: StageService(
                key=ServiceKey(namespace=metadata.namespace, name=service.service),
                stage=StageName(service.stage),
            )
            for name, service in found.items()
        },
    )


def read_slice(manifest: Manifest) -> SeenSlice:
    """What an EndpointSlice says.

    An endpoint that is not ready gets no requests: it does not serve yet, or it is about to go.

    Raises:
        InvalidPipeline: It is of no service of a stage, or has addresses but not their port.
    """
    seen = _read(manifest, _Slice)
    metadata = seen.metadata
    service, stage = metadata.labels.get(SERVICE_LABEL), metadata.labels.get(STAGE_LABEL)
    if not service or not stage:
        raise InvalidPipeline(
            f"it lacks the label {STAGE_LABEL if service else SERVICE_LABEL}", field="metadata"
        )
    if seen.address_type not in _IP:
        raise InvalidPipeline(
            f"addresses are {seen.address_type}; IPv4 or IPv6 are understood", field="addressType"
        )
    ready = [
        each for each in seen.endpoints or () if each.addresses and each.conditions.takes_requests
    ]
    ports = [each.port for each in seen.ports or () if each.name == PORT_NAME and each.port]
    if ready and not ports:
        raise InvalidPipeline(f"there is no port named {PORT_NAME}", field="ports")
    return SeenSlice(
        service=ServiceKey(namespace=metadata.namespace, name=service),
        endpoints=tuple(_endpoint(each, StageName(stage), ports[0]) for each in ready),
    )


def _endpoint(seen: _Endpoint, stage: StageName, port: int) -> ReplicaEndpoint:
    address = str(Address(host=seen.addresses[0], port=port))
    pod = seen.target_ref or _Target()
    return ReplicaEndpoint(
        stage=stage, replica=ReplicaId(pod.name or address), address=address, life=pod.uid
    )


def _read(manifest: Manifest, kind: type[T]) -> T:
    try:
        return msgspec.convert(manifest, type=kind)
    except msgspec.ValidationError as malformed:
        raise InvalidPipeline(str(malformed)) from malformed
