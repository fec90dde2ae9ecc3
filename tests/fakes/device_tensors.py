"""Memory of a "device" for tests: the engine's own region on a CPU, and what is made and read there."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc.aio
import torch

from omnistage_common.channels import SERVER_OPTIONS
from omnistage_common.deadlines import Deadline
from omnistage_common.ids import new_incarnation, this_host
from omnistage_common.payloads import DeviceTensor, Tensor, TensorHeader, TensorRef
from omnistage_common.tensors import LeaseOwner, TensorPlane
from omnistage_common.tensors.door import open_door
from omnistage_stage.engines.torch.conversion import fill, octets_of
from omnistage_stage.engines.torch.device_memory import DeviceRegion

__all__ = [
    "WatchedRegion",
    "bytes_on_device",
    "made_on_device",
    "on_device",
    "plane_with_door",
    "region",
]

# As in a stage: two threads for a copy cost more than they save.
torch.set_num_threads(1)

CPU: Final = torch.device("cpu")
_SLAB_BYTES: Final = 16 << 20


def region(size: int) -> DeviceRegion:
    """A region of that many bytes."""
    return DeviceRegion(CPU, size)


class WatchedRegion(DeviceRegion):
    """A region that tells what the host reads of it.

    Args:
        size: Bytes.
        on_host: What it says of itself.
        on_read: Called before each read with the bytes to be read.
    """

    def __init__(
        self, size: int, *, on_host: bool = True, on_read: Callable[[int], None] | None = None
    ) -> None:
        super().__init__(CPU, size)
        self.on_host = on_host
        self.reads: list[int] = []
        self.on_read = on_read

    def read(self, offset: int, length: int) -> memoryview:
        """See `DeviceMemory`."""
        self.reads.append(length)
        if self.on_read is not None:
            self.on_read(length)
        return super().read(offset, length)


def on_device(tensor: Tensor) -> Any:
    """What an engine would have computed: the tensor, as torch has it."""
    return octets_of(tensor.data)


async def made_on_device(
    plane: TensorPlane,
    tensor: Tensor,
    *,
    owner: LeaseOwner = "a",
    deadline: Deadline | None = None,
) -> TensorRef:
    """A reference to a tensor of bytes that was made on the device."""
    header: TensorHeader = tensor.header
    place = await plane.reserve_on_device(
        header, owner=owner, deadline=deadline or Deadline.after(60)
    )
    with place:
        fill(place.data, on_device(tensor))
        ref = await place.seal()
    assert isinstance(ref, TensorRef)
    return ref


def bytes_on_device(tensor: Tensor | DeviceTensor) -> bytes:
    """The bytes of a tensor that landed on the device."""
    assert isinstance(tensor, DeviceTensor)
    return bytes(tensor.memory.read(tensor.offset, tensor.header.length))


@asynccontextmanager
async def plane_with_door(directory: Path, made: DeviceRegion) -> AsyncIterator[TensorPlane]:
    """A producer in this very process that others reach as they reach a stage.

    Args:
        directory: Folder of its segment.
        made: Where it makes tensors on its device.
    """
    async with AsyncExitStack() as stack:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        plane = TensorPlane(
            incarnation=new_incarnation(),
            host=this_host(),
            slab_bytes=_SLAB_BYTES,
            directory=directory,
            address=f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}",
        )
        stack.callback(plane.close)
        plane.attach(made=made, received=None)
        open_door(server, plane)
        await server.start()
        stack.push_async_callback(server.stop, None)
        yield plane
