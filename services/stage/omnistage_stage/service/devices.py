"""Joins a loaded engine's device to the tensor plane: its memory, and the pages it copies to.

`limits.deviceSlabBytes` is how much of the device there is for tensors that are made there, and as much
again for those that come from other stages, where there are any and the engine takes them there. It is all taken at the start: a device
that has not as much is found out before the replica is READY.
"""

from typing import Final

from omnistage_common.errors import SetupError
from omnistage_common.pipeline.plan import StagePlan
from omnistage_common.tensors import TensorPlane
from omnistage_stage.engines.protocol import DeviceOwner, Engine

__all__ = ["attach_device"]

_FIELD: Final = "limits.deviceSlabBytes"


def attach_device(engine: Engine, plane: TensorPlane, stage: StagePlan) -> None:
    """Does so, as far as the stage wants it.

    Raises:
        SetupError: The stage wants device memory, and the engine gives none or the device has not as
            much.
    """
    size = stage.limits.device_slab_bytes
    if isinstance(engine, DeviceOwner):
        lock = engine.page_lock()
        if lock is not None:
            plane.page_lock(lock)
        if size:
            lands = bool(stage.receives) and engine.takes_device_tensors
            plane.attach(
                made=engine.device_memory(size),
                received=engine.device_memory(size) if lands else None,
            )
    elif size:
        raise SetupError(
            f"stage {stage.name}: its engine {stage.engine!r} has no device memory to give: leave out"
            f" `{_FIELD}` or set it to 0, so that tensors stay in memory of the host",
            field=_FIELD,
        )
