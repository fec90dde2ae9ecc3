"""Tensors as they travel <-> tensors of torch.

Both ways share memory where they can: a consumer reads the tensor plane in place, and what an engine
made on a CPU is published from where it lies. The bytes that come in may be read-only, which torch
cannot express: what `from_payload` returns must not be written to.
"""

import ctypes
from typing import Final

import numpy as np
import torch

from omnistage_common.errors import EngineFailed
from omnistage_common.payloads import ElementType, Payload, PayloadKind, Tensor, TensorHeader

__all__ = ["from_payload", "to_payload", "to_tensor"]

_TORCH_TYPES: Final = {kind: getattr(torch, kind.value) for kind in ElementType}
_ELEMENT_TYPES: Final = {torch_type: kind for kind, torch_type in _TORCH_TYPES.items()}


def from_payload(payload: Payload) -> torch.Tensor:
    """A CPU tensor over the payload's own bytes, never to be written to.

    It holds the payload's buffer, but not the lease on the memory behind it: clone what must live
    longer than the payload does.

    Raises:
        EngineFailed: The payload is no tensor.
    """
    content = payload.content
    if not isinstance(content, Tensor):
        raise EngineFailed(f"a tensor was expected, {payload.kind.value} came")
    header = content.header
    element_type = _TORCH_TYPES[header.element_type]
    if not header.length:
        return torch.empty(header.shape, dtype=element_type)
    return torch.frombuffer(_writable_alias(content.data), dtype=element_type).reshape(header.shape)


def to_tensor(values: torch.Tensor, *, rate_hz: int = 0) -> Tensor:
    """The tensor as it travels; shares the memory of a contiguous CPU tensor.

    Args:
        values: Any shape; on a device, or with gaps, it is copied first.
        rate_hz: Samples or frames per second along the first dimension.
    """
    values = values.detach().cpu().contiguous()
    header = TensorHeader(
        element_type=_ELEMENT_TYPES[values.dtype], shape=tuple(values.shape), rate_hz=rate_hz
    )
    if not header.length:
        return Tensor(header=header, data=b"")
    octets: memoryview = values.reshape(-1).view(torch.uint8).numpy().data
    return Tensor(header=header, data=octets)


def to_payload(values: torch.Tensor, kind: PayloadKind, *, rate_hz: int = 0) -> Payload:
    """The same, as a payload of that kind."""
    return Payload(kind=kind, content=to_tensor(values, rate_hz=rate_hz))


def _writable_alias(data: bytes | memoryview) -> ctypes.Array[ctypes.c_byte]:
    """The same memory as an object that torch takes without warning that it is read-only.

    The alias holds the buffer that it stands for, as torch holds the alias.
    """
    source = np.frombuffer(data, dtype=np.uint8)
    octets = (ctypes.c_byte * source.nbytes).from_address(source.ctypes.data)
    octets.source = source  # type: ignore[attr-defined]
    return octets
