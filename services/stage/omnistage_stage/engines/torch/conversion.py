"""Tensors as they travel <-> tensors of torch.

Both ways share memory where they can: a consumer reads the tensor plane in place, and what an engine
made on a CPU is published from where it lies. The bytes that come in may be read-only, which torch
cannot express: what `from_payload` returns must not be written to. What arrived on the stage's device,
or is to be made there, is a view of its device region.
"""

import ctypes
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import torch
from msgspec.structs import replace

from omnistage_common.errors import EngineFailed
from omnistage_common.payloads import (
    DeviceTensor,
    ElementType,
    Payload,
    PayloadKind,
    Tensor,
    TensorHeader,
)

__all__ = [
    "fill",
    "from_payload",
    "header_of",
    "octets_of",
    "to_payload",
    "to_tensor",
    "torch_type",
]

_TORCH_TYPES: Final = {kind: getattr(torch, kind.value) for kind in ElementType}
_ELEMENT_TYPES: Final = {torch_type: kind for kind, torch_type in _TORCH_TYPES.items()}


@runtime_checkable
class _Region(Protocol):
    """The device memory that this runtime gives; see `device_memory`."""

    def tensor(self, offset: int, header: TensorHeader) -> Any: ...


def from_payload(payload: Payload) -> torch.Tensor:
    """A tensor over the payload's own bytes, never to be written to.

    It is on the CPU, unless it arrived on the stage's device. It holds the payload's buffer, but not the lease on the memory behind it: clone what must live
    longer than the payload does.

    Raises:
        EngineFailed: The payload is no tensor, or one of another engine's device.
    """
    content = payload.content
    if isinstance(content, DeviceTensor):
        return _on_device(content)
    if not isinstance(content, Tensor):
        raise EngineFailed(f"a tensor was expected, {payload.kind.value} came")
    header = content.header
    element_type = _TORCH_TYPES[header.element_type]
    if not header.length:
        return torch.empty(header.shape, dtype=element_type)
    return octets_of(content.data).view(element_type).reshape(header.shape)


def to_tensor(values: torch.Tensor, *, rate_hz: int = 0) -> Tensor:
    """The tensor as it travels; shares the memory of a contiguous CPU tensor.

    Args:
        values: Any shape; on a device, or with gaps, it is copied first.
        rate_hz: Samples or frames per second along the first dimension.
    """
    values = values.detach().cpu().contiguous()
    header = header_of(values, rate_hz=rate_hz)
    if not header.length:
        return Tensor(header=header, data=b"")
    octets: memoryview = values.reshape(-1).view(torch.uint8).numpy().data
    return Tensor(header=header, data=octets)


def to_payload(values: torch.Tensor, kind: PayloadKind, *, rate_hz: int = 0) -> Payload:
    """The same, as a payload of that kind."""
    return Payload(kind=kind, content=to_tensor(values, rate_hz=rate_hz))


def header_of(values: torch.Tensor, *, rate_hz: int = 0) -> TensorHeader:
    """What a tensor is as it travels."""
    return TensorHeader(
        element_type=_ELEMENT_TYPES[values.dtype], shape=tuple(values.shape), rate_hz=rate_hz
    )


def fill(
    place: memoryview | DeviceTensor, values: torch.Tensor, *, rate_hz: int = 0
) -> TensorHeader:
    """Copies a tensor to where it is made in place, and waits until it is there.

    Args:
        place: Writable; of its bytes or more.
        values: Of any device.
        rate_hz: Samples or frames per second along the first dimension.

    Returns:
        What is there now.

    Raises:
        ValueError: There is less room.
    """
    header = header_of(values, rate_hz=rate_hz)
    room = place.header.length if isinstance(place, DeviceTensor) else len(place)
    if header.length > room:
        raise ValueError(f"a tensor of {header.length} bytes does not fit where {room} are")
    if header.length:
        if isinstance(place, DeviceTensor):
            target = _on_device(replace(place, header=header))
        else:
            target = octets_of(place[: header.length]).view(values.dtype).view(values.shape)
        target.copy_(values, non_blocking=True)
        if values.is_cuda:
            torch.cuda.current_stream(values.device).synchronize()
    return header


def torch_type(element_type: ElementType) -> torch.dtype:
    """The type of torch for an element type."""
    found: torch.dtype = _TORCH_TYPES[element_type]
    return found


def octets_of(data: bytes | memoryview) -> torch.Tensor:
    """A CPU tensor over bytes, of which there are some; to be written to only where they may be."""
    return torch.frombuffer(_writable_alias(data), dtype=torch.uint8)


def _on_device(tensor: DeviceTensor) -> torch.Tensor:
    if not isinstance(tensor.memory, _Region):
        raise EngineFailed(f"a tensor is on {tensor.memory.device}, which is not this engine's")
    view: torch.Tensor = tensor.memory.tensor(tensor.offset, tensor.header)
    return view


def _writable_alias(data: bytes | memoryview) -> ctypes.Array[ctypes.c_byte]:
    """The same memory as an object that torch takes without warning that it is read-only.

    The alias holds the buffer that it stands for, as torch holds the alias.
    """
    source = np.frombuffer(data, dtype=np.uint8)
    octets = (ctypes.c_byte * source.nbytes).from_address(source.ctypes.data)
    octets.source = source  # type: ignore[attr-defined]
    return octets
