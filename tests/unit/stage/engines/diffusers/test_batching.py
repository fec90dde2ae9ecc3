"""One thread, many jobs: in company, in turn, stopped when nobody waits, and none to blame another."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from msgspec import Struct

from omnistage_common.errors import EngineFailed, InvalidRequest, OmnistageError
from omnistage_stage.engines.diffusers.batching import AbandonedError, Batcher, Watch

ENOUGH_S = 10.0


class Job(Struct, frozen=True):
    """A job whose key is given."""

    name: str
    key: str = "alike"


class Kitchen:
    """Computes when it is told to, and remembers what was computed together."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.stopped = threading.Event()
        self.poison: BaseException | None = None

    def compute(self, jobs: Sequence[Job], watch: Watch) -> list[str]:
        """Two steps; the second one when it may go on."""
        self.calls.append([job.name for job in jobs])
        try:
            watch.step(1, 2)
            self.begun.set()
            assert self.go_on.wait(ENOUGH_S)
            watch.step(2, 2)
        except AbandonedError:
            self.stopped.set()
            raise
        if self.poison is not None and any(job.name == "poisoned" for job in jobs):
            raise self.poison
        return [job.name.upper() for job in jobs]


def ignore(_done: int, _total: int) -> None:
    """Nobody asks."""


@contextmanager
def one(
    batcher: Batcher[Job, str], job: Job, told: Callable[[int, int], None] = ignore
) -> Iterator[asyncio.Future[str]]:
    """One job's result."""
    with batcher.submitted([job], [told]) as (result,):
        yield result


async def result_of(batcher: Batcher[Job, str], job: Job) -> str:
    """One job's result, waited for."""
    with one(batcher, job) as result:
        return await result


async def begun(kitchen: Kitchen) -> None:
    """Returns when the thread is in the middle of a call."""
    assert await asyncio.to_thread(kitchen.begun.wait, ENOUGH_S)
    kitchen.begun.clear()


class Service:
    """A started batcher that is closed at the end."""

    def __init__(self, kitchen: Kitchen, *, max_size: int = 1, max_wait: float = 0.0) -> None:
        self.prepared: list[str] = []
        self.batcher: Batcher[Job, str] = Batcher(
            kitchen.compute,
            name="tested",
            prepare=lambda: self.prepared.append(threading.current_thread().name),
            max_size=max_size,
            max_wait=max_wait,
        )

    async def __aenter__(self) -> Batcher[Job, str]:
        self.batcher.start()
        return self.batcher

    async def __aexit__(self, *_: object) -> None:
        await self.batcher.close()
        assert not [t for t in threading.enumerate() if t.name.startswith("tested")]


async def test_a_job_comes_back_and_its_steps_are_told_first() -> None:
    kitchen, steps = Kitchen(), list[tuple[int, int]]()
    service = Service(kitchen)
    async with service as batcher:
        with one(batcher, Job("soup"), lambda done, total: steps.append((done, total))) as result:
            assert await result == "SOUP"
            assert steps == [(1, 2), (2, 2)]
        assert batcher.active == 0

    assert [name.startswith("tested") for name in service.prepared] == [True]


async def test_those_that_come_while_it_computes_go_together_afterwards() -> None:
    kitchen = Kitchen()
    kitchen.go_on.clear()
    async with Service(kitchen, max_size=3, max_wait=0.0) as batcher:
        first = asyncio.create_task(result_of(batcher, Job("first")))
        await begun(kitchen)
        later = [asyncio.create_task(result_of(batcher, Job(name))) for name in "abcd"]
        await asyncio.sleep(0)
        assert batcher.active == 5
        kitchen.go_on.set()
        assert await asyncio.gather(first, *later) == ["FIRST", "A", "B", "C", "D"]

    assert kitchen.calls == [["first"], ["a", "b", "c"], ["d"]]


async def test_company_is_waited_for_no_longer_than_it_must() -> None:
    kitchen = Kitchen()
    async with Service(kitchen, max_size=2, max_wait=0.05) as batcher:
        # Nobody else comes: this returns at all because the wait is bounded.
        assert await asyncio.wait_for(result_of(batcher, Job("alone")), ENOUGH_S) == "ALONE"

    assert kitchen.calls == [["alone"]]


async def test_a_full_group_does_not_wait_its_time() -> None:
    kitchen = Kitchen()
    async with Service(kitchen, max_size=2, max_wait=3600) as batcher:
        both = asyncio.gather(result_of(batcher, Job("a")), result_of(batcher, Job("b")))
        assert list(await asyncio.wait_for(both, ENOUGH_S)) == ["A", "B"]

    assert kitchen.calls == [["a", "b"]]


async def test_jobs_of_one_request_go_together() -> None:
    kitchen = Kitchen()
    async with Service(kitchen, max_size=2, max_wait=3600) as batcher:
        jobs = [Job("a"), Job("b")]
        with batcher.submitted(jobs, [ignore, ignore]) as results:
            assert [await result for result in results] == ["A", "B"]

    assert kitchen.calls == [["a", "b"]]


async def test_one_that_fails_in_company_fails_alone() -> None:
    kitchen = Kitchen()
    kitchen.poison = RuntimeError("too hot")
    async with Service(kitchen, max_size=3, max_wait=3600) as batcher:
        names = ("a", "poisoned", "b")
        results = await asyncio.gather(
            *(result_of(batcher, Job(name)) for name in names), return_exceptions=True
        )

    assert [results[0], results[2]] == ["A", "B"]
    failed = results[1]
    assert isinstance(failed, EngineFailed)
    assert "too hot" in failed.message
    assert failed.__cause__ is kitchen.poison
    assert kitchen.calls == [["a", "poisoned", "b"], ["a"], ["poisoned"], ["b"]]


async def test_an_error_of_ours_stays_what_it_is() -> None:
    kitchen = Kitchen()
    kitchen.poison = InvalidRequest("no such dish", field="dish")
    async with Service(kitchen) as batcher:
        with pytest.raises(InvalidRequest) as refused:
            await result_of(batcher, Job("poisoned"))

    assert refused.value.field == "dish"


async def test_a_call_that_returns_too_little_is_a_failure_and_not_a_hang() -> None:
    def forgetful(_jobs: Sequence[Job], _watch: Watch) -> list[str]:
        return []

    batcher: Batcher[Job, str] = Batcher(
        forgetful, name="tested", prepare=lambda: None, max_size=1, max_wait=0
    )
    batcher.start()
    with pytest.raises(EngineFailed, match="1 jobs were computed and 0 results came"):
        await result_of(batcher, Job("a"))
    await batcher.close()


async def test_a_call_that_nobody_wants_stops_at_its_next_step() -> None:
    kitchen = Kitchen()
    kitchen.go_on.clear()
    async with Service(kitchen) as batcher:
        task = asyncio.create_task(result_of(batcher, Job("a")))
        await begun(kitchen)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert batcher.active == 1
        kitchen.go_on.set()
        assert await asyncio.to_thread(kitchen.stopped.wait, ENOUGH_S)
        assert await result_of(batcher, Job("b")) == "B"
        assert batcher.active == 0


async def test_one_that_leaves_a_running_group_returns_at_once_and_the_rest_is_made() -> None:
    kitchen = Kitchen()
    kitchen.go_on.clear()
    async with Service(kitchen, max_size=2, max_wait=3600) as batcher:
        leaving = asyncio.create_task(result_of(batcher, Job("a")))
        staying = asyncio.create_task(result_of(batcher, Job("b")))
        await begun(kitchen)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        kitchen.go_on.set()
        assert await staying == "B"

    assert not kitchen.stopped.is_set()


async def test_one_that_leaves_the_queue_is_never_computed() -> None:
    kitchen = Kitchen()
    kitchen.go_on.clear()
    async with Service(kitchen) as batcher:
        running = asyncio.create_task(result_of(batcher, Job("a")))
        await begun(kitchen)
        waiting = asyncio.create_task(result_of(batcher, Job("b")))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        kitchen.go_on.set()
        assert await running == "A"

    assert kitchen.calls == [["a"]]


async def test_a_failure_that_nobody_looks_at_is_not_complained_about() -> None:
    kitchen = Kitchen()
    kitchen.poison = RuntimeError("too hot")
    async with Service(kitchen) as batcher:
        jobs = [Job("poisoned"), Job("poisoned")]
        with batcher.submitted(jobs, [ignore, ignore]) as results:
            await asyncio.wait(results)
            with pytest.raises(OmnistageError):
                results[0].result()


async def test_closing_stops_what_runs_and_fails_what_waits() -> None:
    kitchen = Kitchen()
    kitchen.go_on.clear()
    async with Service(kitchen) as batcher:
        tasks = [asyncio.create_task(result_of(batcher, Job(name))) for name in "ab"]
        await begun(kitchen)
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0)
        kitchen.go_on.set()
        await closing
        results = await asyncio.gather(*tasks, return_exceptions=True)

        assert [type(result) for result in results] == [EngineFailed, EngineFailed]
        assert kitchen.stopped.is_set()
        with pytest.raises(EngineFailed, match="closed"):
            await result_of(batcher, Job("c"))


async def test_many_cancelled_at_random_leave_nothing() -> None:
    kitchen = Kitchen()
    async with Service(kitchen, max_size=4, max_wait=0.001) as batcher:
        tasks = [
            asyncio.create_task(result_of(batcher, Job(f"{index}", key=f"{index % 3}")))
            for index in range(60)
        ]
        for index, task in enumerate(tasks):
            await asyncio.sleep(0)
            if index % 2:
                task.cancel()
        await asyncio.wait(tasks)
        assert await result_of(batcher, Job("last")) == "LAST"

        assert [task.result() for task in tasks[::2]] == [f"{index}" for index in range(0, 60, 2)]
        assert batcher.active == 0
