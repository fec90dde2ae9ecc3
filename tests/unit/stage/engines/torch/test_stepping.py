"""One thread steps all jobs: who joins, waits, leaves and fails, without any model."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from omnistage_common.errors import EngineFailed, InvalidRequest, SetupError, TensorLost
from omnistage_common.payloads import Payload, PayloadKind
from omnistage_stage.engines.protocol import EngineResult, FinishReason
from omnistage_stage.engines.torch.stepping import Job, StepLoop


class Echo(Job):
    """Says again what it is fed, one word a step."""

    def __init__(self, name: str, held: set[str]) -> None:
        super().__init__()
        self.name = name
        self.words: list[str] = []
        self.closed = False
        self.said = 0
        self._held = held
        held.add(name)

    def feed(self, port: str, rows: str) -> None:
        """Takes words; some it refuses."""
        if rows == "bad":
            raise InvalidRequest(f"{port} has a bad word", field=port)
        self.words.extend(rows.split())

    def exhaust(self, port: str) -> None:
        """Needs a word at least."""
        self.closed = True
        if not self.words and not self.said:
            raise EngineFailed(f"nothing came at {port}")

    @property
    def ready(self) -> bool:
        """Whether there is a word to say, or nothing more will come."""
        return self.end is None and (bool(self.words) or (self.closed and bool(self.said)))

    def leave(self) -> None:
        """Is held no longer."""
        self._held.discard(self.name)


class Speaker:
    """Steps echoes; remembers who was stepped together, and in which threads."""

    def __init__(self) -> None:
        self.together: list[tuple[str, ...]] = []
        self.threads: set[int] = set()
        self.closed = False

    def step(self, jobs: Sequence[Echo]) -> None:
        """Says one word for each."""
        self.threads.add(threading.get_ident())
        self.together.append(tuple(job.name for job in jobs))
        for job in jobs:
            if not job.words:
                job.end = EngineResult(finish_reason=FinishReason.STOP, output_tokens=job.said)
                continue
            word = job.words.pop(0)
            if word == "explode":
                raise ZeroDivisionError("the model broke")
            job.said += 1
            job.made.append(Payload(kind=PayloadKind.TEXT, content=word))

    def close(self) -> None:
        """Notes it."""
        self.closed = True


class Heard:
    """What was said to one request."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._begun = asyncio.Event()

    def take(self, word: str) -> None:
        """Hears a word."""
        self.words.append(word)
        self._begun.set()

    async def something(self) -> None:
        """Waits for the first word."""
        await self._begun.wait()


class Room:
    """A loop with what is needed to watch it."""

    def __init__(self) -> None:
        self.speaker = Speaker()
        self.held: set[str] = set()
        self.loop: StepLoop[Echo] = StepLoop(lambda: self.speaker, name="tested")

    async def say(
        self, name: str, pieces: AsyncIterator[Payload], heard: Heard | None = None
    ) -> EngineResult:
        """Runs one echo."""
        words = Heard() if heard is None else heard
        return await self.loop.run(
            lambda: Echo(name, self.held),
            {"words": (pieces, lambda piece: piece.content)},
            lambda payload: words.take(str(payload.content)),
        )


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    """A loop that runs."""
    made = Room()
    await made.loop.start()
    yield made
    await made.loop.stop()
    assert made.speaker.closed


async def pieces(*texts: str) -> AsyncIterator[Payload]:
    """Texts, each when it is asked for."""
    for text in texts:
        yield Payload(kind=PayloadKind.TEXT, content=text)


async def pieces_after(
    wait: Callable[[], Awaitable[object]], first: str, *rest: str
) -> AsyncIterator[Payload]:
    """One text at once, the others after something has happened."""
    yield Payload(kind=PayloadKind.TEXT, content=first)
    await wait()
    for text in rest:
        yield Payload(kind=PayloadKind.TEXT, content=text)


async def test_what_is_made_comes_in_order_and_the_result_after_it(room: Room) -> None:
    heard = Heard()
    result = await room.say("a", pieces("one two", "three"), heard)

    assert heard.words == ["one", "two", "three"]
    assert result.output_tokens == 3
    assert room.held == set()
    assert room.loop.active == 0


async def test_everything_happens_in_one_thread_that_is_not_the_loops(room: Room) -> None:
    await asyncio.gather(*(room.say(str(n), pieces("a b c")) for n in range(4)))

    assert len(room.speaker.threads) == 1
    assert threading.get_ident() not in room.speaker.threads


async def test_jobs_join_and_step_together_while_one_that_waits_is_left_out(room: Room) -> None:
    go = asyncio.Event()
    heard = Heard()
    slow = asyncio.create_task(room.say("slow", pieces_after(go.wait, "first", "last"), heard))
    await heard.something()
    await room.say("quick", pieces(" ".join("abcdef")))

    assert ("quick",) in room.speaker.together
    assert all("slow" not in names for names in room.speaker.together[1:])
    go.set()
    await slow
    assert heard.words == ["first", "last"]


async def test_a_cancelled_request_has_left_when_its_cancellation_goes_on(room: Room) -> None:
    never = asyncio.Event()
    heard = Heard()
    task = asyncio.create_task(room.say("gone", pieces_after(never.wait, "first"), heard))
    await heard.something()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert room.held == set()
    assert room.loop.active == 0
    assert (await room.say("next", pieces("word"))).output_tokens == 1


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 9])
async def test_cancelling_at_any_moment_leaves_nothing(room: Room, turns: int) -> None:
    tasks = [asyncio.create_task(room.say(str(n), pieces(*["word"] * 50))) for n in range(5)]
    for _ in range(turns):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

    assert room.held == set()
    assert room.loop.active == 0


@pytest.mark.parametrize("port", ["words"])
async def test_what_a_job_refuses_fails_that_request_only(room: Room, port: str) -> None:
    good = asyncio.create_task(room.say("good", pieces("a b", "c")))
    with pytest.raises(InvalidRequest, match="bad word") as refused:
        await room.say("bad", pieces("fine", "bad"))

    assert refused.value.field == port
    assert (await good).output_tokens == 3
    assert room.held == set()


async def test_too_little_input_is_the_jobs_own_error(room: Room) -> None:
    with pytest.raises(EngineFailed, match="nothing came at words"):
        await room.say("silent", pieces())
    assert room.held == set()


async def test_a_lost_input_fails_the_request_with_its_own_error(room: Room) -> None:
    async def lost() -> None:
        raise TensorLost("the producer is gone")

    heard = Heard()
    with pytest.raises(TensorLost, match="producer is gone"):
        await room.say("a", pieces_after(lost, "first"), heard)

    assert room.held == set()
    assert (await room.say("next", pieces("word"))).output_tokens == 1


async def test_a_job_that_cannot_be_made_is_refused(room: Room) -> None:
    def refuse() -> Echo:
        raise InvalidRequest("no", field="voice")

    with pytest.raises(InvalidRequest):
        await room.loop.run(refuse, {}, lambda _payload: None)
    assert room.loop.active == 0


async def test_a_step_that_raises_fails_everybody_now_and_later() -> None:
    room = Room()
    await room.loop.start()
    never = asyncio.Event()
    heard = Heard()
    waiting = asyncio.create_task(room.say("waits", pieces_after(never.wait, "first"), heard))
    await heard.something()
    with pytest.raises(EngineFailed, match="the model broke"):
        await room.say("breaks", pieces("explode"))
    with pytest.raises(EngineFailed, match="must be restarted"):
        await waiting
    with pytest.raises(EngineFailed):
        await room.say("late", pieces("word"))

    assert room.speaker.closed
    await room.loop.stop()


async def test_what_making_the_stepper_raises_is_a_setup_error() -> None:
    def broken() -> Speaker:
        raise OSError("no such file")

    loop: StepLoop[Echo] = StepLoop(broken, name="tested")
    with pytest.raises(SetupError, match=r"OSError: no such file"):
        await loop.start()
    await loop.stop()


async def test_stopping_fails_what_still_runs() -> None:
    room = Room()
    await room.loop.start()
    never = asyncio.Event()
    heard = Heard()
    running = asyncio.create_task(room.say("a", pieces_after(never.wait, "first"), heard))
    await heard.something()
    await room.loop.stop()

    with pytest.raises(EngineFailed, match="it was stopped"):
        await running
