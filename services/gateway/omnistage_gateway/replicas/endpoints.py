"""Where replicas are, in values: what a source of pipelines says and what links are made from."""

from msgspec import Struct

from omnistage_common.ids import ReplicaId, StageName

__all__ = ["ReplicaEndpoint", "ServiceKey"]


class ServiceKey(Struct, frozen=True, kw_only=True):
    """Which replicas: those of one revision of one stage, which any number of pipelines use."""

    name: str
    """In a cluster that of their headless Service, otherwise that of the stage."""
    namespace: str = ""


class ReplicaEndpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a replica is. Another life of it, or another address, is another replica."""

    stage: StageName
    replica: ReplicaId
    address: str
    """`HOST:PORT` of its gRPC service."""
    life: str = ""
    """What tells it from an earlier one of that name; in a cluster the UID of its pod."""
