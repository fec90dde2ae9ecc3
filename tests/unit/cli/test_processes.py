"""One child process: started, heard, stopped."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from omnistage_cli.runtime.directory import last_lines
from omnistage_cli.runtime.processes import Command, start
from omnistage_common.processes import PARENT_VARIABLE
from omnistage_common.tensors import SHARED_MEMORY_FOLDER


def script(code: str, log: Path, **environment: str) -> Command:
    """A command that runs Python code."""
    return Command(arguments=(sys.executable, "-c", code), environment=environment, log=log)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a process."""
    return tmp_path / "log"


async def test_both_streams_and_the_environment_arrive_in_the_log(log: Path) -> None:
    code = (
        f"import os, sys; print(os.environ['GREETING'], os.environ['{PARENT_VARIABLE}'], flush=True);"
        "print('and errors', file=sys.stderr)"
    )

    process = await start(script(code, log, GREETING="hello"))

    assert await process.wait() == 0
    assert process.last_lines() == (f"hello {os.getpid()}", "and errors")


async def test_last_lines_are_not_those_of_the_process_before(log: Path) -> None:
    for words in ("first", "second"):
        process = await start(script(f"print('{words}')", log))
        await process.wait()

    assert process.last_lines() == ("second",)
    assert last_lines(log) == ("first", "second")


async def test_a_process_leads_a_session_of_its_own(log: Path) -> None:
    process = await start(script("import os; print(os.getsid(0), os.getpgid(0))", log))
    await process.wait()

    assert process.last_lines() == (f"{process.pid} {process.pid}",)


async def test_terminate_asks_and_kill_does_not(log: Path) -> None:
    asked = await start(script("import signal; signal.pause()", log))
    asked.terminate()
    assert await asked.wait() == -15

    killed = await start(script("import signal; signal.pause()", log))
    killed.kill()
    assert await killed.wait() == -9


async def test_both_do_nothing_to_a_process_that_has_ended(log: Path) -> None:
    process = await start(script("", log))
    await process.wait()

    process.terminate()
    process.kill()


async def test_a_cancelled_wait_kills_the_process(log: Path) -> None:
    process = await start(script("import signal; signal.pause()", log))
    waiting = asyncio.ensure_future(process.wait())
    await asyncio.sleep(0)

    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


async def test_shared_memory_of_a_killed_process_is_removed_and_no_other(log: Path) -> None:
    other = SHARED_MEMORY_FOLDER / f"omnistage-{os.getpid()}-test"
    other.touch()
    code = (
        f"import os, signal; open(f'{SHARED_MEMORY_FOLDER}/omnistage-{{os.getpid()}}-0', 'w').close();"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    try:
        process = await start(script(code, log))
        await process.wait()

        assert list(SHARED_MEMORY_FOLDER.glob(f"omnistage-{process.pid}-*")) == []
        assert other.exists()
    finally:
        other.unlink()


async def test_a_program_that_does_not_exist_says_so_in_its_log(log: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await start(Command(arguments=("/nonexistent",), environment={}, log=log))

    assert last_lines(log) == ("cannot start /nonexistent: No such file or directory",)
