"""Memory of the stage's device for the tensor plane, and its pages for copies of the device.

A device region is one torch tensor of bytes that lives as long as the process: the plane leases places
in it, a component computes on torch tensors that are views of such places, and a transfer engine reads
it where it is. Where the device is a CPU everything is the same but for streams, so every test runs it.

The plane's own copies (stamps, samples, pieces of a byte stream) run on a stream of their own: they must
not wait for what the model computes, nor the event loop with them. So a component waits for its own
stream before it says that a tensor is made.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import structlog
import torch

from omnistage_common.errors import SetupError, TensorLost, truncated
from omnistage_common.payloads import TensorHeader
from omnistage_common.tensors import PageLock
from omnistage_stage.engines.torch.conversion import octets_of, torch_type

__all__ = ["DEVICE_SLAB_FIELD", "DeviceRegion", "HostRegistry", "page_lock_of", "page_lock_with"]

_log = structlog.get_logger()

DEVICE_SLAB_FIELD = "limits.deviceSlabBytes"
_PORTABLE = 1
"""`cudaHostRegisterPortable`: locked for every device of the process."""


class DeviceRegion:
    """See the module, and `DeviceMemory`.

    Args:
        device: A `torch.device`.
        size: Bytes.

    Raises:
        SetupError: The device has not as much.
    """

    def __init__(self, device: Any, size: int) -> None:
        try:
            # Zeros: whoever can read the region must not find what was on the device before.
            self._octets = torch.zeros(size, dtype=torch.uint8, device=device)
        except RuntimeError as error:
            raise SetupError(
                truncated(
                    f"{device} has no {size} bytes for tensors: lower `{DEVICE_SLAB_FIELD}` or what"
                    f" the model takes ({error})"
                ),
                field=DEVICE_SLAB_FIELD,
            ) from error
        self.device = str(self._octets.device)
        self.address = self._octets.data_ptr()
        self.size = size
        self.on_host = self._octets.device.type == "cpu"
        self._stream = None if self.on_host else torch.cuda.Stream(self._octets.device)

    def tensor(self, offset: int, header: TensorHeader) -> Any:
        """The tensor at a place: a view, to be read or filled."""
        octets = self._octets[offset : offset + header.length]
        return octets.view(torch_type(header.element_type)).view(header.shape)

    def read(self, offset: int, length: int) -> memoryview:
        """See `DeviceMemory`."""
        copy = torch.empty(length, dtype=torch.uint8)
        with self._copying():
            copy.copy_(self._octets[offset : offset + length])
        octets: memoryview = copy.numpy().data
        return octets

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """See `DeviceMemory`."""
        if len(data):
            with self._copying():
                self._octets[offset : offset + len(data)].copy_(octets_of(data))

    @contextmanager
    def _copying(self) -> Iterator[None]:
        try:
            if self._stream is None:
                yield
            else:
                with torch.cuda.stream(self._stream):
                    yield
                self._stream.synchronize()
        except RuntimeError as error:
            raise TensorLost(truncated(f"tensors on {self.device} are lost: {error}")) from error


class HostRegistry(Protocol):
    """What is used of the CUDA runtime, with its names."""

    def cudaHostRegister(self, address: int, size: int, flags: int, /) -> Any:  # noqa: N802
        """Locks pages; 0 when it did."""

    def cudaHostUnregister(self, address: int, /) -> Any:  # noqa: N802
        """Unlocks them."""


def page_lock_of(device: Any) -> PageLock | None:
    """What locks pages of the host for copies to and from a device; None where nothing needs it.

    Args:
        device: A `torch.device`.
    """
    if device.type != "cuda":
        return None
    return page_lock_with(torch.cuda.cudart())


def page_lock_with(registry: HostRegistry) -> PageLock:
    """What locks pages by a CUDA runtime.

    Pages that it does not lock are copied from and to all the same, only slower: that is logged once for
    each region and is no error.
    """

    def lock(address: int, size: int) -> Callable[[], None]:
        refused = int(registry.cudaHostRegister(address, size, _PORTABLE))
        if refused:
            _log.warning("pages not locked: copies to the host are slower", size=size, code=refused)
            return lambda: None

        def unlock() -> None:
            registry.cudaHostUnregister(address)

        return unlock

    return lock
