"""The queue with a clock: waiting workers, timers, back-off, the end."""

import asyncio
from collections import Counter

import pytest
import uvloop
from prometheus_client import CollectorRegistry

from fakes.controlled import running, until
from omnistage_common.cluster.rates import BackoffRule
from omnistage_operator.control.metrics import OperatorMetrics
from omnistage_operator.control.queueing import Queue, QueueRates

QUICK = QueueRates(backoff=BackoffRule(first_s=0.001, most_s=0.004), retries_per_s=1e6)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def queue(registry: CollectorRegistry) -> Queue[str]:
    return Queue(rates=QUICK, metrics=OperatorMetrics(registry).controller("c").queue)


async def test_a_worker_waits_until_there_is_a_key(queue: Queue[str]) -> None:
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not worker.done()

    queue.add("a")

    assert await worker == "a"


async def test_each_key_goes_to_one_worker(queue: Queue[str]) -> None:
    workers = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)

    for key in ("a", "a", "b", "c"):
        queue.add(key)

    assert {await worker for worker in workers} == {"a", "b", "c"}


async def test_a_key_added_while_it_is_worked_on_comes_once_more(queue: Queue[str]) -> None:
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    again = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not again.done()

    queue.done("a")

    assert await again == "a"
    queue.done("a")
    assert queue.is_idle


async def test_delayed_keys_come_by_themselves_and_in_order(queue: Queue[str]) -> None:
    queue.add_after("late", 0.02)
    queue.add_after("soon", 0.01)

    assert queue.depth == 0
    assert [await queue.get(), await queue.get()] == ["soon", "late"]


async def test_failed_keys_come_back_later_each_time(queue: Queue[str]) -> None:
    for failures in range(1, 6):
        queue.add_rate_limited("a")
        assert queue.failures("a") == failures
        assert await queue.get() == "a"
        queue.done("a")

    queue.forget("a")

    assert queue.failures("a") == 0


async def test_all_failures_together_keep_to_a_rate(registry: CollectorRegistry) -> None:
    rates = QueueRates(backoff=BackoffRule(first_s=0.0001), retries_per_s=100, retry_burst=1)
    queue: Queue[int] = Queue(rates=rates, metrics=OperatorMetrics(registry).controller("c").queue)
    clock = asyncio.get_running_loop().time
    begun = clock()

    for key in range(11):
        queue.add_rate_limited(key)
    for _ in range(11):
        await queue.get()

    assert clock() - begun >= 0.09


async def test_a_cancelled_worker_passes_its_turn_on(queue: Queue[str]) -> None:
    first = asyncio.create_task(queue.get())
    second = asyncio.create_task(queue.get())
    await asyncio.sleep(0)

    queue.add("a")
    first.cancel()

    assert await asyncio.wait_for(second, 1) == "a"
    assert first.cancelled()


async def test_a_closed_queue_hands_out_what_waits_and_then_ends(queue: Queue[str]) -> None:
    queue.add("a")
    queue.add_after("never", 0.001)
    queue.close()
    queue.add("too late")

    assert await queue.get() == "a"
    assert await queue.get() is None


async def test_closing_ends_workers_that_wait(queue: Queue[str]) -> None:
    workers = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)

    queue.close()

    assert [await worker for worker in workers] == [None, None, None]


async def test_many_workers_and_keys_never_meet_at_one_key(queue: Queue[str]) -> None:
    at_work: set[str] = set()
    worked: Counter[str] = Counter()

    async def work() -> None:
        while (key := await queue.get()) is not None:
            assert key not in at_work
            at_work.add(key)
            await asyncio.sleep(0)
            at_work.discard(key)
            worked[key] += 1
            queue.done(key)

    async with running(*(work() for _ in range(8))):
        for round_ in range(50):
            for number in range(20):
                queue.add(f"k{number}")
            if round_ % 5 == 0:
                await asyncio.sleep(0)
        await until(lambda: queue.is_idle)

    assert len(worked) == 20
    assert max(worked.values()) <= 12


async def test_figures_say_what_the_queue_does(
    queue: Queue[str], registry: CollectorRegistry
) -> None:
    def figure(name: str) -> float | None:
        return registry.get_sample_value(f"omnistage_operator_workqueue_{name}", {"name": "c"})

    queue.add("a")
    queue.add("b")
    queue.add("b")
    await queue.get()

    assert figure("adds_total") == 2
    assert figure("depth") == 1
    assert (figure("unfinished_work_seconds") or 0) >= 0
    queue.done("a")
    queue.add_rate_limited("a")
    assert figure("retries_total") == 1
    assert figure("work_duration_seconds_count") == 1
    assert figure("queue_duration_seconds_count") == 1


def test_a_delay_that_is_almost_over_is_fine_on_the_loop_that_the_operator_runs_on(
    registry: CollectorRegistry,
) -> None:
    """Of a timer that is due within the millisecond that loop does not tell when it is due."""

    async def add_and_get() -> set[str | None]:
        queue: Queue[str] = Queue(
            rates=QUICK, metrics=OperatorMetrics(registry).controller("c").queue
        )
        for name in "abc":
            queue.add_after(name, 1e-6)
            queue.add_after(name + name, 1e-4)
        return {await queue.get() for _ in range(6)}

    assert uvloop.run(add_and_get()) == {"a", "b", "c", "aa", "bb", "cc"}
