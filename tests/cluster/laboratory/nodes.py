"""Simulated nodes for tests that are not asynchronous: a thread of their own keeps them.

What they are and what they do is in `omnistage_cli.bench.operator.simulated_nodes`. A container on
such a node never runs; say so in the test. On real nodes, `extended_resource` adds an accelerator that
nobody has.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from omnistage_cli.bench.operator.simulated_nodes import (
    SIMULATED_LABEL,
    SimulatedNode,
    simulated_nodes,
)
from omnistage_common.cluster.connecting import Address, connect
from omnistage_common.cluster.errors import ApiError
from omnistage_common.errors import SetupError

__all__ = ["SIMULATED_LABEL", "SimulatedNode", "run_simulated", "simulated"]

_START_SECONDS: Final = 30.0


@contextmanager
def simulated(kubeconfig: Path, *nodes: SimulatedNode) -> Iterator[None]:
    """Nodes that are there while the block runs; their pods end with them.

    Raises:
        SetupError: The API server is not reached, or refused one of them.
    """
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    there: Future[None] = Future()
    with ThreadPoolExecutor(1, thread_name_prefix="simulated-nodes") as thread:
        running = thread.submit(
            _run_in_thread, loop, run_simulated(kubeconfig, nodes, there=there, stop=stop)
        )
        # Whatever ends the simulation before the nodes are there is told to who waits for them.
        running.add_done_callback(lambda done: _hand_on(done, there))
        try:
            there.result(_START_SECONDS)
            yield
        finally:
            if not running.done():
                loop.call_soon_threadsafe(stop.set)
            running.result()
            loop.close()


async def run_simulated(
    kubeconfig: Path,
    nodes: tuple[SimulatedNode, ...],
    *,
    there: "Future[None]",
    stop: asyncio.Event,
) -> None:
    """Simulates nodes until told to stop, then removes them and the pods on them.

    Args:
        kubeconfig: The cluster, with the rights of an administrator.
        nodes: What to simulate.
        there: Fulfilled when all of them are ready.
        stop: Ends the simulation.

    Raises:
        SetupError: The API server is not reached, or refused one of them.
    """
    try:
        async with (
            connect(Address(kubeconfig=kubeconfig)) as connection,
            simulated_nodes(connection, *nodes),
        ):
            there.set_result(None)
            await stop.wait()
    except ApiError as error:
        raise SetupError(f"nodes cannot be simulated: {error.message}") from error


def _run_in_thread(loop: asyncio.AbstractEventLoop, simulation: Any) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(simulation)


def _hand_on(done: "Future[None]", there: "Future[None]") -> None:
    error = done.exception()
    if error is not None and not there.done():
        there.set_exception(error)
