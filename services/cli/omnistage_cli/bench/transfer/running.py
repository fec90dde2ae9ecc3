"""Starts the two processes, lets them move tensors, and hears of every round.

The command's own process only waits meanwhile. Nothing is left when this returns, raises or is
interrupted.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from omnistage_cli.bench.transfer.methods import Method
from omnistage_cli.bench.transfer.orders import MeasureOrder, Round, Source, SourceOrder
from omnistage_cli.bench.transfer.processes import child_of
from omnistage_cli.runtime.interrupts import interrupts

__all__ = ["Wanted", "measure"]

_SOURCE: Final = "omnistage_cli.bench.transfer.source"
_MEASURING: Final = "omnistage_cli.bench.transfer.measuring"


class Wanted(Struct, frozen=True, kw_only=True):
    """What to measure."""

    methods: tuple[Method, ...]
    """That are there."""
    sizes: tuple[int, ...]
    """Bytes."""
    rounds: int


def measure(wanted: Wanted, heard: Callable[[Round], None]) -> bool:
    """Moves tensors between two processes until all is measured or the user interrupts.

    Args:
        wanted: What is to be moved.
        heard: Told of each round when it is over.

    Returns:
        Whether all was measured.

    Raises:
        ServerError: A process failed.
    """
    return asyncio.run(_until_interrupted(wanted, heard))


async def _until_interrupted(wanted: Wanted, heard: Callable[[Round], None]) -> bool:
    with interrupts() as interrupted:
        measuring = asyncio.create_task(_all(wanted, heard), name="measuring")
        stopping = asyncio.create_task(interrupted.stop.wait(), name="interrupt")
        await asyncio.wait((measuring, stopping), return_when=asyncio.FIRST_COMPLETED)
        done = measuring.done()
        for task in (measuring, stopping):
            task.cancel()
        await asyncio.wait((measuring, stopping))
        if done:
            await measuring
        return done


async def _all(wanted: Wanted, heard: Callable[[Round], None]) -> None:
    produced = SourceOrder(methods=wanted.methods, sizes=wanted.sizes)
    async with child_of(_SOURCE, produced) as producer:
        source = msgspec.json.decode(await producer.line(), type=Source)
        order = MeasureOrder(
            source=source, methods=wanted.methods, sizes=wanted.sizes, rounds=wanted.rounds
        )
        async with child_of(_MEASURING, order) as consumer:
            async for line in consumer.lines():
                heard(msgspec.json.decode(line, type=Round))
