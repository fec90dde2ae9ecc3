"""Threads that compute: bounded, cancellable between pieces, gone when closed."""

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial

import pytest

from omnistage_stage.engines.workers import Work, WorkerThreads

ENOUGH_S = 10.0


@pytest.fixture
async def workers() -> AsyncIterator[WorkerThreads]:
    threads = WorkerThreads(name="tested", size=1)
    yield threads
    threads.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tested")]


async def test_a_result_comes_back_from_a_thread_of_the_pool(workers: WorkerThreads) -> None:
    name = await workers.compute(lambda _work: threading.current_thread().name)

    assert name.startswith("tested")


async def test_an_error_comes_back_as_it_was_raised(workers: WorkerThreads) -> None:
    def fail(_work: Work) -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        await workers.compute(fail)


async def test_a_cancelled_caller_returns_after_its_thread_has_let_go(
    workers: WorkerThreads,
) -> None:
    begun, told, over = threading.Event(), threading.Event(), threading.Event()

    def linger(work: Work) -> None:
        begun.set()
        assert told.wait(ENOUGH_S)
        assert not work.wanted()
        over.set()

    task = asyncio.create_task(workers.compute(linger))
    await asyncio.to_thread(begun.wait, ENOUGH_S)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    told.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert over.is_set()


async def test_work_that_waits_for_a_thread_never_begins_when_it_is_cancelled(
    workers: WorkerThreads,
) -> None:
    release = threading.Event()
    begun: list[str] = []

    def hold(name: str, _work: Work) -> None:
        begun.append(name)
        assert release.wait(ENOUGH_S)

    first = asyncio.create_task(workers.compute(partial(hold, "first")))
    second = asyncio.create_task(workers.compute(partial(hold, "second")))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    release.set()
    await first

    assert begun == ["first"]
