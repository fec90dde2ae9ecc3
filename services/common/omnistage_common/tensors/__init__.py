"""The tensor plane: how tensors get from the stage that makes them to the stages that read them.

Gateway and engines see `TensorPlane` and nothing below it, so that a transport can be added without
a change in either.
"""

from omnistage_common.tensors.leases import LeaseOwner
from omnistage_common.tensors.plane import PlaneStatistics, TensorPlane
from omnistage_common.tensors.segments import SHARED_MEMORY_FOLDER, remove_stale
from omnistage_common.tensors.transport import Location, Transport, TransportKind

__all__ = [
    "SHARED_MEMORY_FOLDER",
    "LeaseOwner",
    "Location",
    "PlaneStatistics",
    "TensorPlane",
    "Transport",
    "TransportKind",
    "remove_stale",
]
