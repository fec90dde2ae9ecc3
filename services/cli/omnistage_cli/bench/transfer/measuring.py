"""The consuming process of `omnistage bench transfer`: has tensors moved to it, and takes the time.

`python -m omnistage_cli.bench.transfer.measuring` reads a `MeasureOrder` as JSON from its standard
input and prints a `Round` as JSON on a line for each round of each size. In a round every method moves
a tensor of that size, in an order that changes from turn to turn, so that whatever else the machine
does hits all of them alike. After each transfer every byte is read and compared, which is not timed.
"""

import random
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import msgspec
import uvloop

from omnistage_cli.bench.transfer.contents import check
from omnistage_cli.bench.transfer.methods import Method, moves, turns
from omnistage_cli.bench.transfer.orders import MeasureOrder, Move, Round
from omnistage_cli.bench.transfer.ways import Way, open_ways
from omnistage_common.errors import OmnistageError
from omnistage_common.processes import exit_with_parent, settle_heap

_WARMUP: Final = 2
"""Turns of each size that are not counted: connections are made, memory is claimed and mapped."""


async def _moved(way: Way, length: int) -> Move:
    arrival = await way.move(length)
    if arrival.data is not None:
        check(arrival.data, length)
    move = arrival.move
    del arrival
    await way.done()
    return move


async def _turn(ways: dict[Method, Way], order: Sequence[Method], length: int) -> list[Move]:
    return [await _moved(ways[method], length) for method in order]


async def _measure(order: MeasureOrder) -> None:
    shuffling = random.Random(0)  # noqa: S311 - an order of work
    async with AsyncExitStack() as stack:
        ways = await open_ways(order, stack)
        settle_heap()
        for length in order.sizes:
            taken = [method for method in ways if moves(method, length)]
            for _ in range(_WARMUP):
                await _turn(ways, taken, length)
            for _ in range(order.rounds):
                done: list[Move] = []
                for _ in range(turns(length)):
                    shuffling.shuffle(taken)
                    done += await _turn(ways, taken, length)
                _say(Round(bytes=length, moves=tuple(done)))


def _say(finished: Round) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(finished) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Measures as the order on standard input says."""
    exit_with_parent()
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=MeasureOrder)
    try:
        uvloop.run(_measure(order))
    except OmnistageError as failed:
        sys.exit(failed.message)


if __name__ == "__main__":
    main()
