"""The torch engine's device memory and page locks, with a CPU for the device and a registry of the test's."""

import pytest
import structlog
import torch

from fakes.device_tensors import region
from omnistage_common.errors import EngineFailed, SetupError, TensorLost
from omnistage_common.payloads import (
    DeviceTensor,
    ElementType,
    Payload,
    PayloadKind,
    TensorHeader,
)
from omnistage_stage.engines.torch.conversion import fill, from_payload, header_of
from omnistage_stage.engines.torch.device_memory import (
    DeviceRegion,
    HostRegistry,
    page_lock_of,
    page_lock_with,
)

MIB = 1 << 20
CPU = torch.device("cpu")


def test_a_region_is_fresh_memory_at_an_address_that_stays() -> None:
    memory = region(4096)

    assert (memory.device, memory.size, memory.on_host) == ("cpu", 4096, True)
    assert memory.address % 64 == 0
    assert bytes(memory.read(0, 4096)) == bytes(4096)


def test_what_the_host_reads_is_a_copy() -> None:
    memory = region(4096)
    memory.write(100, b"stamp")
    before = memory.read(100, 5)
    memory.write(100, memoryview(b"later").toreadonly())

    assert bytes(before) == b"stamp"
    assert bytes(memory.read(98, 9)) == b"\0\0later\0\0"
    memory.write(4096, b"")
    assert bytes(memory.read(4096, 0)) == b""


@pytest.mark.parametrize("kind", ElementType)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
def test_a_tensor_is_made_in_place_and_read_in_place(
    kind: ElementType, shape: tuple[int, ...]
) -> None:
    count = torch.Size(shape).numel()
    values = torch.arange(max(1, count))[:count].to(getattr(torch, kind.value)).reshape(shape)
    memory = region(4096)
    place = DeviceTensor(header=header_of(values), memory=memory, offset=128)

    header = fill(place, values, rate_hz=7)
    there = from_payload(Payload(kind=PayloadKind.LATENTS, content=place))

    assert header == TensorHeader(element_type=kind, shape=shape, rate_hz=7)
    assert torch.equal(there, values)
    if count:
        assert there.data_ptr() == memory.address + 128


@pytest.mark.parametrize("there", ["host", "device"])
def test_less_than_there_is_room_for_stands_at_the_front_and_more_is_refused(there: str) -> None:
    header = TensorHeader(element_type=ElementType.FLOAT32, shape=(8,))
    place: memoryview | DeviceTensor = memoryview(bytearray(32))
    if there == "device":
        place = DeviceTensor(header=header, memory=region(4096), offset=64)

    made = fill(place, torch.ones(2, 3))

    assert made.shape == (2, 3)
    data = place if isinstance(place, memoryview) else place.memory.read(64, 32)
    assert list(data.cast("B").cast("f")) == [1.0] * 6 + [0.0] * 2
    with pytest.raises(ValueError, match="36 bytes does not fit where 32 are"):
        fill(place, torch.ones(9))


def test_a_tensor_that_torch_computed_without_gradients_can_be_filled_in() -> None:
    memory = region(4096)
    with torch.inference_mode():
        values = torch.rand(8)
    place = DeviceTensor(header=header_of(values), memory=memory, offset=0)

    fill(place, values)

    assert torch.equal(memory.tensor(0, place.header), values)


def test_more_than_the_device_has_is_refused_by_the_field() -> None:
    with pytest.raises(SetupError, match=r"lower `limits\.deviceSlabBytes`") as refused:
        DeviceRegion(CPU, 1 << 60)

    assert refused.value.field == "limits.deviceSlabBytes"


def test_a_device_that_fails_loses_its_tensors() -> None:
    memory = region(4096)
    with pytest.raises(TensorLost, match=r"tensors on cpu are lost: .*size"):
        memory.write(4090, b"more than there is")


def test_memory_of_another_runtime_is_refused() -> None:
    class Foreign:
        device, address, size, on_host = "npu:0", 4096, 4096, False

        def read(self, offset: int, length: int) -> memoryview:
            raise AssertionError(offset, length)

        def write(self, offset: int, data: bytes | memoryview) -> None:
            raise AssertionError(offset, data)

    tensor = DeviceTensor(
        header=TensorHeader(element_type=ElementType.UINT8, shape=(1,)), memory=Foreign(), offset=0
    )
    with pytest.raises(EngineFailed, match="npu:0, which is not this engine's"):
        from_payload(Payload(kind=PayloadKind.LATENTS, content=tensor))


class Registry:
    """Registers what it is told, as the CUDA runtime does."""

    def __init__(self, *, code: int = 0) -> None:
        self.code = code
        self.held: dict[int, tuple[int, int]] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int, /) -> int:  # noqa: N802
        """Locks pages."""
        if not self.code:
            self.held[address] = size, flags
        return self.code

    def cudaHostUnregister(self, address: int, /) -> int:  # noqa: N802
        """Unlocks them."""
        del self.held[address]
        return 0


def test_pages_are_locked_and_unlocked() -> None:
    registry = Registry()
    unlock = page_lock_with(registry)(8192, MIB)

    assert registry.held == {8192: (MIB, 1)}
    unlock()
    assert registry.held == {}


def test_pages_that_cannot_be_locked_are_said_and_no_error() -> None:
    refusing: HostRegistry = Registry(code=2)
    with structlog.testing.capture_logs() as logs:
        unlock = page_lock_with(refusing)(8192, MIB)
        unlock()

    assert [(line["code"], line["size"]) for line in logs] == [(2, MIB)]


def test_a_cpu_needs_no_locked_pages() -> None:
    assert page_lock_of(CPU) is None
