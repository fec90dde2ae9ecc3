"""Payloads <-> torch and numpy (foreign: torch).

Tensors cross in the type that the model has them in, booleans as int64. What comes in is copied into
memory of torch's own: the buffer that it lies in belongs to the producer, and kernels may choose
another order of summation for data that is not aligned as torch aligns it.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from omnistage_common.errors import EngineFailed
from omnistage_common.ids import OutputName
from omnistage_common.payloads import ElementType, Payload, PayloadKind, Tensor, TensorHeader

__all__ = ["copied", "pixels", "set_threads", "tensor_payload", "torch_type"]

_TYPES: Final = {
    ElementType.FLOAT32: torch.float32,
    ElementType.FLOAT16: torch.float16,
    ElementType.BFLOAT16: torch.bfloat16,
    ElementType.INT64: torch.int64,
    ElementType.INT32: torch.int32,
    ElementType.INT16: torch.int16,
    ElementType.UINT8: torch.uint8,
}
_ELEMENT_TYPES: Final = {type_: element for element, type_ in _TYPES.items()}


def torch_type(name: str) -> Any:
    """The torch type of a name in `engineArgs.dtype`."""
    return _TYPES[ElementType(name)]


def set_threads(threads: int) -> None:
    """Sets the number of threads of CPU kernels that the calling thread starts."""
    torch.set_num_threads(threads)


def copied(arrived: Mapping[OutputName, tuple[Tensor, ...]]) -> dict[str, tuple[Any, ...]]:
    """Torch tensors with copies of the elements, on the CPU."""
    return {name: tuple(_copy(tensor) for tensor in tensors) for name, tensors in arrived.items()}


def _copy(tensor: Tensor) -> Any:
    header = tensor.header
    made = torch.empty(header.shape, dtype=_TYPES[header.element_type])
    made.view(-1).view(torch.uint8).numpy()[:] = np.frombuffer(tensor.data, dtype=np.uint8)
    return made


def tensor_payload(kind: PayloadKind, content: Any, *, rate_hz: int = 0) -> Payload:
    """A payload of a torch tensor or numpy array, whose memory it shares where that is possible.

    Raises:
        EngineFailed: The elements are of a type that does not travel.
    """
    made = torch.from_numpy(content) if isinstance(content, np.ndarray) else content
    if made.dtype is torch.bool:
        made = made.to(torch.int64)
    if made.dtype not in _ELEMENT_TYPES:
        raise EngineFailed(f"the model made {kind.value} of type {made.dtype}, which cannot travel")
    made = made.detach().cpu().contiguous()
    header = TensorHeader(
        element_type=_ELEMENT_TYPES[made.dtype], shape=tuple(made.shape), rate_hz=rate_hz
    )
    return Payload(
        kind=kind,
        content=Tensor(header=header, data=made.view(-1).view(torch.uint8).numpy().data),
    )


def pixels(frames: Any) -> Any:
    """uint8 RGB pixels of floats from 0 to 1, rounded as diffusers does for its own images."""
    values = np.asarray(frames)
    if values.dtype != np.uint8:
        values = (values * 255).round().astype(np.uint8)
    if values.shape[-1] == 1:
        values = np.repeat(values, 3, axis=-1)
    return np.ascontiguousarray(values[..., :3])
