"""A thread that owns a model: it begins, obeys, lets go, and never ends unheard."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from msgspec import Struct

from omnistage_common.errors import EngineFailed, InvalidWeights, SetupError
from omnistage_stage.engines.model_thread import ModelThread


class Release(Struct, frozen=True):
    """The message that asks for something to be let go of."""

    done: asyncio.Future[None]


class Echo:
    """A life that says back what it is told: `stop` ends it, `break` breaks it."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()
        self.ends = 0
        self.thread: ModelThread[str | Release] = ModelThread(
            self.live, at_end=self.count_end, name="echo"
        )

    def live(self) -> None:
        """Runs in the thread."""
        self.thread.begun()
        while True:
            for message in self.thread.take(wait=True):
                if isinstance(message, Release):
                    self.thread.released([message.done])
                elif message == "break":
                    raise ArithmeticError("it broke")
                elif message == "stop":
                    return
                else:
                    self.thread.tell(self.heard.put_nowait, message)

    def count_end(self) -> None:
        """Runs on the event loop."""
        self.ends += 1


def failing(error: BaseException) -> Callable[[], None]:
    """A life that is over before it has begun."""

    def live() -> None:
        raise error

    return live


async def test_messages_are_obeyed_in_order_until_it_is_told_to_stop() -> None:
    echo = Echo()
    await echo.thread.start()
    for word in ("one", "two"):
        echo.thread.put(word)
    heard = [await echo.heard.get() for _ in range(2)]
    await echo.thread.stop("stop")

    assert heard == ["one", "two"]
    assert echo.ends == 1
    assert "echo" not in {thread.name for thread in threading.enumerate()}
    assert "it was stopped" in str(echo.thread.failed())


async def test_a_release_is_over_when_the_thread_says_so() -> None:
    echo = Echo()
    await echo.thread.start()
    echo.thread.put("before")
    await echo.thread.release(Release)

    assert echo.heard.get_nowait() == "before"
    await echo.thread.stop("stop")


async def test_what_breaks_it_is_told_and_nobody_waits_for_it() -> None:
    echo = Echo()
    await echo.thread.start()
    echo.thread.put("break")
    await echo.thread.release(Release)

    assert echo.thread.ended
    assert echo.ends == 1
    error = echo.thread.failed()
    assert isinstance(error, EngineFailed)
    assert isinstance(error.__cause__, ArithmeticError)
    # Neither does anybody who comes later.
    await echo.thread.release(Release)
    await echo.thread.stop("stop")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (InvalidWeights("no such file", field="model"), InvalidWeights),
        (MemoryError("too large"), SetupError),
    ],
)
async def test_a_life_that_fails_before_it_has_begun_fails_the_start(
    raised: BaseException, expected: type[Exception]
) -> None:
    thread: ModelThread[str] = ModelThread(failing(raised), at_end=lambda: None, name="failing")

    with pytest.raises(expected, match=str(raised)):
        await thread.start()
    await thread.stop("stop")
    assert thread.ended


async def test_a_thread_that_never_started_stops_at_once() -> None:
    await Echo().thread.stop("stop")
