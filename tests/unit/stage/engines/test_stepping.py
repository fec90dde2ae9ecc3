"""The step loop: one thread, batched hand-over, aborts that are over when they say so."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from omnistage_common.errors import (
    EngineFailed,
    InvalidRequest,
    InvalidWeights,
    OmnistageError,
    SetupError,
)
from omnistage_stage.engines.protocol import FinishReason
from omnistage_stage.engines.vllm.stepping import Finish, Piece, StepLoop


class WordCore:
    """A core that spells the words it is given, a letter a step."""

    def __init__(self) -> None:
        self.words: dict[int, list[str]] = {}
        self.threads: set[int] = set()
        self.batches: list[int] = []
        self.gate = threading.Semaphore(1_000_000)
        self.closed = False
        self.broken = False

    @property
    def active(self) -> int:
        """Words in work."""
        return len(self.words)

    def add(self, ticket: int, order: str) -> OmnistageError | None:
        """Takes a word."""
        self.threads.add(threading.get_ident())
        if not order:
            return InvalidRequest("an empty word")
        self.words[ticket] = list(order)
        return None

    def abort(self, tickets: Sequence[int]) -> None:
        """Forgets words."""
        for ticket in tickets:
            self.words.pop(ticket, None)

    def step(self) -> list[Piece[str]]:
        """Spells a letter of each word, when the gate lets it."""
        self.threads.add(threading.get_ident())
        assert self.gate.acquire(timeout=10)
        if self.broken:
            raise ZeroDivisionError("out of letters")
        self.batches.append(len(self.words))
        return [self._spell(ticket) for ticket in list(self.words)]

    def close(self) -> None:
        """Remembers that it was closed."""
        self.closed = True

    def _spell(self, ticket: int) -> Piece[str]:
        letter, *rest = self.words[ticket]
        self.words[ticket] = rest
        if rest:
            return Piece(ticket=ticket, content=letter)
        del self.words[ticket]
        end = Finish(reason=FinishReason.STOP, input_tokens=1, output_tokens=1)
        return Piece(ticket=ticket, content=letter, end=end)


@asynccontextmanager
async def stepping(core: WordCore) -> AsyncIterator[StepLoop[str, str]]:
    loop = StepLoop[str, str](lambda: core, name="stepped")
    await loop.start()
    try:
        yield loop
    finally:
        await loop.stop()
        assert "stepped" not in [thread.name for thread in threading.enumerate()]


async def spell(loop: StepLoop[str, str], word: str) -> list[str]:
    letters: list[str] = []
    await loop.run(word, letters.append)
    return letters


async def test_deltas_arrive_in_order_and_the_end_after_them() -> None:
    async with stepping(WordCore()) as loop:
        assert await spell(loop, "word") == ["w", "o", "r", "d"]


async def test_one_thread_of_its_own_does_everything() -> None:
    core = WordCore()
    async with stepping(core) as loop:
        await asyncio.gather(*(spell(loop, "word") for _ in range(5)))

    assert len(core.threads) == 1
    assert threading.get_ident() not in core.threads
    assert core.closed


async def test_requests_share_steps() -> None:
    core = WordCore()
    core.gate = threading.Semaphore(0)
    async with stepping(core) as loop:
        tasks = [asyncio.create_task(spell(loop, "abc")) for _ in range(4)]
        await asyncio.sleep(0)
        core.gate.release(1_000)
        assert await asyncio.gather(*tasks) == [["a", "b", "c"]] * 4

    assert max(core.batches) == 4


async def test_a_cancelled_request_is_gone_from_the_core_when_run_returns() -> None:
    core = WordCore()
    async with stepping(core) as loop:
        began = asyncio.Event()
        task = asyncio.create_task(loop.run("x" * 1_000_000, lambda _letter: began.set()))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert loop.active == 0
        assert await spell(loop, "next") == list("next")


async def test_nothing_is_emitted_for_a_cancelled_request() -> None:
    core = WordCore()
    core.gate = threading.Semaphore(1)
    letters: list[str] = []
    async with stepping(core) as loop:
        began = asyncio.Event()

        def emit(letter: str) -> None:
            letters.append(letter)
            began.set()

        task = asyncio.create_task(loop.run("abcdef", emit))
        await began.wait()
        task.cancel()
        await asyncio.sleep(0)
        core.gate.release(1_000)
        with pytest.raises(asyncio.CancelledError):
            await task

    assert letters == ["a"]


async def test_a_refused_request_leaves_the_others_alone() -> None:
    async with stepping(WordCore()) as loop:
        good = asyncio.create_task(spell(loop, "good"))
        with pytest.raises(InvalidRequest, match="an empty word"):
            await spell(loop, "")
        assert await good == list("good")


async def test_a_step_that_raises_fails_running_and_later_requests() -> None:
    core = WordCore()
    core.gate = threading.Semaphore(0)
    async with stepping(core) as loop:
        running = [asyncio.create_task(spell(loop, "abc")) for _ in range(3)]
        await asyncio.sleep(0)
        core.broken = True
        core.gate.release()
        for error in await asyncio.gather(*running, return_exceptions=True):
            assert isinstance(error, EngineFailed)
            assert "out of letters" in error.message
        with pytest.raises(EngineFailed, match="out of letters"):
            await spell(loop, "later")

    assert core.closed


async def test_a_request_cancelled_while_the_core_fails_does_not_wait_for_ever() -> None:
    core = WordCore()
    core.gate = threading.Semaphore(0)
    async with stepping(core) as loop:
        task = asyncio.create_task(spell(loop, "abc"))
        await asyncio.sleep(0)
        core.broken = True
        task.cancel()
        await asyncio.sleep(0)
        core.gate.release()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize(
    ("raised", "kind", "said"),
    [
        (InvalidWeights("no weights here"), InvalidWeights, "no weights here"),
        (LookupError("no weights"), SetupError, "cannot be loaded: LookupError: no weights"),
    ],
)
async def test_what_loading_raises_comes_out_of_start_as_one_of_our_errors(
    raised: Exception, kind: type[OmnistageError], said: str
) -> None:
    def fail() -> WordCore:
        raise raised

    loop = StepLoop[str, str](fail, name="stepped")
    with pytest.raises(kind, match=said):
        await loop.start()
    await loop.stop()
    with pytest.raises(EngineFailed, match="no weights"):
        await loop.run("later", lambda _letter: None)


async def test_stopping_fails_what_still_runs() -> None:
    async with stepping(WordCore()) as loop:
        began = asyncio.Event()
        task = asyncio.create_task(loop.run("x" * 1_000_000, lambda _letter: began.set()))
        await began.wait()
        await loop.stop()
        with pytest.raises(EngineFailed, match="stopped"):
            await task


async def test_a_loop_that_never_started_stops_at_once() -> None:
    await StepLoop[str, str](WordCore, name="stepped").stop()


async def test_a_start_that_nobody_waits_for_is_finished_before_the_stop() -> None:
    core, release = WordCore(), threading.Event()

    def make() -> WordCore:
        assert release.wait(10)
        return core

    loop = StepLoop[str, str](make, name="stepped")
    starting = asyncio.create_task(loop.start())
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    stopping = asyncio.create_task(loop.stop())
    await asyncio.sleep(0)
    release.set()
    await stopping

    assert core.closed
