"""The tensor plane: how tensors get from the stage that makes them to the stages that read them.

Gateway and engines see `TensorPlane` and nothing below it, so that a transport can be added without
a change in either. The gRPC door of a plane is in `omnistage_common.tensors.door`.
"""

from omnistage_common.tensors.leases import LeaseOwner
from omnistage_common.tensors.plane import PlaneStatistics, TensorPlane
from omnistage_common.tensors.publishing import Reservation
from omnistage_common.tensors.regions import PageLock
from omnistage_common.tensors.segments import SHARED_MEMORY_FOLDER, remove_stale
from omnistage_common.tensors.transport import (
    EVERY_TRANSPORT,
    PeerReport,
    TransportCount,
    TransportKind,
)

__all__ = [
    "EVERY_TRANSPORT",
    "SHARED_MEMORY_FOLDER",
    "LeaseOwner",
    "PageLock",
    "PeerReport",
    "PlaneStatistics",
    "Reservation",
    "TensorPlane",
    "TransportCount",
    "TransportKind",
    "remove_stale",
]
