"""Durations and byte quantities become numbers."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage_common.pipeline.quantities import bytes_of, seconds_of
from omnistage_common.pipeline.resources.values import BYTES_PATTERN, DURATION_PATTERN


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120s", 120),
        ("500ms", 0.5),
        ("1m30s", 90),
        ("1h", 3600),
        ("0s", 0),
        ("1h1m1s1ms", 3661.001),
    ],
)
def test_a_duration_is_the_sum_of_its_parts(text: str, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "size"),
    [("64Mi", 2**26), ("1Ki", 1024), ("2Gi", 2**31), ("1Ti", 2**40), ("5", 5), ("3k", 3000), ("1M", 10**6), ("1G", 10**9), ("1T", 10**12)],
)  # fmt: skip
def test_bytes_are_read_with_their_unit(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "Mi", "64MB", "-1", "1.5Gi", "64 Mi"])
def test_what_is_no_byte_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a byte quantity such as 64Mi"):
        bytes_of(text)


@given(st.from_regex(re.compile(BYTES_PATTERN.rstrip("$")), fullmatch=True))
def test_whatever_the_pattern_lets_through_can_be_read_as_bytes(text: str) -> None:
    assert bytes_of(text) >= 0


@given(st.from_regex(re.compile(DURATION_PATTERN.rstrip("$"), re.ASCII), fullmatch=True))
def test_whatever_the_pattern_lets_through_can_be_read_as_seconds(text: str) -> None:
    assert seconds_of(text) >= 0
