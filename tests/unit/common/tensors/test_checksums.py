"""The checksum: covers the header, the ends and places between, and costs the same for any length."""

import pytest

from fakes.tensor_producer import MIB, random_tensor
from omnistage_common.payloads import ElementType, TensorHeader
from omnistage_common.tensors.checksums import SAMPLED_WHOLE, sample_checksum

HEADER = TensorHeader(element_type=ElementType.UINT8, shape=(4 * MIB,))
DATA = memoryview(random_tensor(4 * MIB).data)


def changed(data: memoryview, at: int) -> memoryview:
    """The same bytes, but for one."""
    copy = bytearray(data)
    copy[at] ^= 1
    return memoryview(copy)


def test_equal_tensors_have_equal_checksums() -> None:
    assert sample_checksum(HEADER, DATA) == sample_checksum(HEADER, memoryview(bytes(DATA)))


@pytest.mark.parametrize(
    "header",
    [
        TensorHeader(element_type=ElementType.INT16, shape=(2 * MIB,)),
        TensorHeader(element_type=ElementType.UINT8, shape=(2, 2 * MIB)),
        TensorHeader(element_type=ElementType.UINT8, shape=(4 * MIB,), rate_hz=1),
    ],
)
def test_the_same_bytes_under_another_header_have_another(header: TensorHeader) -> None:
    assert sample_checksum(header, DATA) != sample_checksum(HEADER, DATA)


@pytest.mark.parametrize("at", [0, 16_383, 4 * MIB - 16_384, 4 * MIB - 1])
def test_a_change_near_an_end_shows(at: int) -> None:
    assert sample_checksum(HEADER, changed(DATA, at)) != sample_checksum(HEADER, DATA)


@pytest.mark.parametrize("at", [0, 1, SAMPLED_WHOLE // 2, SAMPLED_WHOLE - 1])
def test_every_byte_of_a_small_tensor_counts(at: int) -> None:
    data = DATA[:SAMPLED_WHOLE]
    header = TensorHeader(element_type=ElementType.UINT8, shape=(SAMPLED_WHOLE,))

    assert sample_checksum(header, changed(data, at)) != sample_checksum(header, data)


@pytest.mark.parametrize("length", [SAMPLED_WHOLE + 1, MIB + 7, 4 * MIB])
def test_a_block_that_was_filled_anew_shows_wherever_it_was_torn(length: int) -> None:
    header = TensorHeader(element_type=ElementType.UINT8, shape=(length,))
    old, new = DATA[:length], memoryview(random_tensor(length, seed=1).data)
    whole = sample_checksum(header, old)

    for part in range(1, 9):
        torn = bytearray(old)
        torn[: length * part // 8] = new[: length * part // 8]
        assert sample_checksum(header, memoryview(torn)) != whole


def test_a_change_between_the_sampled_places_does_not_show() -> None:
    assert sample_checksum(HEADER, changed(DATA, 100_000)) == sample_checksum(HEADER, DATA)


@pytest.mark.parametrize("length", [0, 1])
def test_next_to_nothing_has_a_checksum_too(length: int) -> None:
    header = TensorHeader(element_type=ElementType.UINT8, shape=(length,))

    assert 0 <= sample_checksum(header, DATA[:length]) < 2**64
