"""What a replica asks of its node, as a cluster writes quantities.

`/dev/shm` is memory: whatever is written there counts against the container's limit, so its size is
added to what the runtime says. Devices cannot be shared or overbooked, so limit and request are equal.
"""

from typing import Any, Final

from omnistage_common.pipeline.plan import Limits
from omnistage_common.pipeline.quantities import bytes_of
from omnistage_common.pipeline.resources import StageRuntimeSpec

__all__ = ["quantity_of", "requirements", "shared_memory_bytes"]

_MARGIN: Final = 64 * 2**20
"""Bytes of `/dev/shm` beside the tensor slab: segments of libraries, and the rest of a page."""
_UNITS: Final = (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def quantity_of(count: int) -> str:
    """Bytes in the largest unit that says them exactly."""
    for unit, size in _UNITS:
        if count and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)


def shared_memory_bytes(runtime: StageRuntimeSpec, limits: Limits) -> int:
    """Size of `/dev/shm`."""
    if runtime.shared_memory is not None:
        return bytes_of(runtime.shared_memory)
    return limits.slab_bytes + _MARGIN


def requirements(runtime: StageRuntimeSpec, shared_memory: int) -> dict[str, Any]:
    """The `resources` of a container.

    Args:
        runtime: What it asks for.
        shared_memory: Bytes of `/dev/shm`; asked for even where the runtime names no memory.
    """
    asked = runtime.resources
    own = bytes_of(asked.memory) if asked.memory is not None else 0
    memory = {"memory": quantity_of(own + shared_memory)}
    devices = {
        device.resource: str(device.count)
        for device in (asked.accelerator, runtime.rdma)
        if device is not None
    }
    limits = {**(memory if asked.memory is not None else {}), **devices}
    cpu = {"cpu": asked.cpu} if asked.cpu is not None else {}
    return {"requests": {**cpu, **memory, **devices}, **({"limits": limits} if limits else {})}
