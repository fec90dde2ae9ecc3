"""Runs the measuring half of a benchmark in a process of its own, so that it shares no event loop."""

import asyncio
import sys
from typing import TypeVar

import msgspec

from omnistage_common.errors import ServerError

__all__ = ["run_child"]

T = TypeVar("T")


async def run_child(module: str, order: msgspec.Struct, into: type[T]) -> T:
    """What a module prints as JSON when it is run with an order as JSON on its standard input.

    Args:
        module: Dotted name, e.g. `omnistage_cli.bench.load`.
        order: What it reads.
        into: What it prints.

    When cancelled, ends the process.

    Raises:
        ServerError: It failed; with its last line.
    """
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", module),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await child.communicate(msgspec.json.encode(order))
    except asyncio.CancelledError:
        child.kill()
        await child.wait()
        raise
    if child.returncode:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise ServerError(f"the measuring process failed: {' '.join(last)}")
    return msgspec.json.decode(output, type=into)
