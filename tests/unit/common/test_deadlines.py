"""A deadline is one point in time, whichever clock it is told in."""

import asyncio
import time

import pytest

from omnistage_common.deadlines import Deadline

MICROSECOND = 1e-6


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The clocks of this process, standing still until they are moved."""
    now = {"wall": 1_800_000_000.0, "monotonic": 500.0}
    monkeypatch.setattr(time, "time", lambda: now["wall"])
    monkeypatch.setattr(time, "monotonic", lambda: now["monotonic"])
    return now


def test_it_passes_when_its_time_has_come(clocks: dict[str, float]) -> None:
    deadline = Deadline.after(2.0)
    seen = []
    for _ in range(4):
        seen.append((deadline.remaining(), deadline.passed))
        clocks["monotonic"] += 1.0

    assert seen == [(2.0, False), (1.0, False), (0.0, True), (-1.0, True)]


def test_a_peer_gets_wall_clock_time(clocks: dict[str, float]) -> None:
    assert Deadline.after(1.5).to_unix_us() == round((clocks["wall"] + 1.5) * 1e6)


@pytest.mark.parametrize("seconds", [-5.0, 0.0, 0.001, 86_400.0])
def test_it_survives_the_way_to_a_peer(clocks: dict[str, float], seconds: float) -> None:
    deadline = Deadline.after(seconds)

    back = Deadline.from_unix_us(deadline.to_unix_us())

    assert back.monotonic == pytest.approx(deadline.monotonic, abs=MICROSECOND)
    assert clocks["monotonic"] + seconds == deadline.monotonic


def test_a_step_of_the_wall_clock_does_not_move_it(clocks: dict[str, float]) -> None:
    deadline = Deadline.from_unix_us(round((clocks["wall"] + 10) * 1e6))

    clocks["wall"] += 3600

    assert deadline.remaining() == pytest.approx(10, abs=MICROSECOND)


async def test_it_is_counted_by_the_clock_of_the_event_loop() -> None:
    assert asyncio.get_running_loop().time() == pytest.approx(time.monotonic(), abs=1.0)
