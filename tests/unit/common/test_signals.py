"""Stop signals, as real processes get them."""

import os
import signal
import subprocess
import sys
from typing import Final

import pytest

from omnistage_common.signals import FORCED_EXIT

SERVER: Final = """
import asyncio, sys
from omnistage_common.signals import StopSignals

async def serve():
    with StopSignals() as stop:
        print("up", flush=True)
        await stop.wait()
        print("draining", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        print("drained", flush=True)

asyncio.run(serve())
"""
"""Drains until a line comes in."""

PARENT: Final = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(child.pid, flush=True)
sys.stdin.readline()
"""


def start(*arguments: str) -> "subprocess.Popen[str]":
    """A process that is talked to."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def said(process: "subprocess.Popen[str]") -> str:
    """Its next line."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: "subprocess.Popen[str]") -> None:
    """Sends it a line."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains(number: signal.Signals) -> None:
    with start("-c", SERVER) as server:
        assert said(server) == "up"
        server.send_signal(number)
        assert said(server) == "draining"
        tell(server)
        assert said(server) == "drained"
        assert server.wait(10) == 0


def test_the_second_signal_ends_it_at_once() -> None:
    with start("-c", SERVER) as server:
        assert said(server) == "up"
        server.terminate()
        assert said(server) == "draining"
        server.terminate()
        assert server.wait(10) == FORCED_EXIT


def test_an_orphan_drains_however_often_it_is_told() -> None:
    """Its parent is killed; the kernel sends a signal for each thread that the parent had."""
    with start("-c", PARENT, SERVER) as parent:
        server = int(said(parent))
        assert said(parent) == "up"
        # Both have the same standard input: the one that is left reads the next line.
        parent.kill()
        os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
        os.kill(server, signal.SIGTERM)
        assert said(parent) == "draining"
        os.kill(server, signal.SIGTERM)
        tell(parent)
        assert said(parent) == "drained"
