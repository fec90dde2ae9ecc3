"""What the benchmark's load makes of the latencies it saw."""

import pytest

from omnistage_cli.bench.load import percentile_ms


@pytest.mark.parametrize(
    ("percent", "milliseconds"), [(0, 1.0), (50, 51.0), (95, 96.0), (99, 100.0), (100, 100.0)]
)
def test_a_percentile_is_a_latency_that_was_seen(percent: int, milliseconds: float) -> None:
    ordered = [number / 1000 for number in range(1, 101)]

    assert percentile_ms(ordered, percent) == milliseconds


def test_one_latency_is_every_percentile() -> None:
    assert {percentile_ms([0.002], percent) for percent in (0, 50, 99)} == {2.0}
