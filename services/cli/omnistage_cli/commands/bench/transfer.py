"""`omnistage bench transfer`: how fast a tensor gets from one process to another."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from omnistage_cli.bench.transfer.methods import PAUSES, SIZES, Method, lacking
from omnistage_cli.bench.transfer.orders import Round
from omnistage_cli.bench.transfer.report import Tally, report_of
from omnistage_cli.bench.transfer.running import Wanted, measure
from omnistage_cli.commands.bench.sizes import parse_size, size_in_words
from omnistage_cli.commands.bench.starting import told_on
from omnistage_cli.commands.bench.transfer_tables import tables_of
from omnistage_cli.commands.options import DEFAULT_HOST
from omnistage_cli.runtime import RunOptions, run_plan

__all__ = ["EXAMPLES", "transfer"]

EXAMPLES: Final = """
Examples:

  omnistage bench transfer

  omnistage bench transfer --json > transfer.json

  omnistage bench transfer --size 16MiB --size 1GiB --method copy --method shared_memory
"""

_LEAST_BYTES: Final = 16
_MOST_BYTES: Final = 1024**3


def transfer(
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="SIZE", help="Bytes of a tensor, e.g. 16MiB; may be repeated."),
    ] = None,
    method: Annotated[
        list[Method] | None, typer.Option(help="How to move it; may be repeated; all by default.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds per size.")] = 15,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Measure how fast a tensor gets from one process to another.

    Moves tensors of 4 KiB to 256 MiB between two processes by every transport of the tensor plane, a
    plain socket and a gRPC call, beside one copy of memory, in turns; then has two stages hand over a
    small one. Takes about a minute and a half, and 3 GiB of memory.
    """
    sizes = _checked_sizes(size)
    asked = tuple(dict.fromkeys(method or Method))
    left_out = {each.value: why for each in asked if (why := lacking(each))}
    there = tuple(each for each in asked if each.value not in left_out)
    progress, tally = Console(stderr=True), Tally()
    for name, why in left_out.items():
        told_on(progress)(f"{name} is left out: {why}")
    between = tuple(each for each in there if each not in PAUSES)
    if between:
        _move(Wanted(methods=between, sizes=sizes, rounds=rounds), tally, progress)
    stages = tuple(each for each in there if each in PAUSES)
    if stages:
        _hand_off(stages, rounds, tally, progress)
    report = report_of(tally.rows(), cores=os.cpu_count() or 1, left_out=left_out)
    if as_json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        for table in tables_of(report):
            Console().print(table)


def _checked_sizes(given: Sequence[str] | None) -> tuple[int, ...]:
    sizes = tuple(sorted({parse_size(text) for text in given})) if given else SIZES
    if sizes[0] < _LEAST_BYTES or sizes[-1] > _MOST_BYTES:
        raise typer.BadParameter(
            f"a tensor has {_LEAST_BYTES} bytes to 1 GiB here", param_hint="--size"
        )
    return sizes


def _move(wanted: Wanted, tally: Tally, console: Console) -> None:
    """Has tensors moved between two processes, with a bar on a terminal and a line a size elsewhere.

    Raises:
        typer.Exit: The user did not wait.
    """
    bar = Progress(
        TextColumn("bench: {task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        refresh_per_second=4,
        disable=not console.is_terminal,
    )
    weight = sum(wanted.sizes) * wanted.rounds
    begun: set[int] = set()
    with bar:
        task = bar.add_task("starting two processes", total=weight)

        def heard(finished: Round) -> None:
            tally.add(finished)
            words = f"{size_in_words(finished.bytes)} by {len(wanted.methods)} methods"
            bar.update(task, advance=finished.bytes, description=words)
            if finished.bytes not in begun and not console.is_terminal:
                told_on(console)(words)
            begun.add(finished.bytes)

        done = measure(wanted, heard)
    if not done:
        told_on(console)("interrupted")
        raise typer.Exit(1)


def _hand_off(methods: tuple[Method, ...], rounds: int, tally: Tally, console: Console) -> None:
    """Has two stages hand over tensors.

    Raises:
        typer.Exit: The user did not wait.
    """
    from omnistage_cli.bench.transfer.hand_off import (  # noqa: PLC0415 - it needs the stages' code
        LAUNCH,
        HandOff,
        hand_off_plan,
    )

    with TemporaryDirectory(prefix="omnistage-bench-") as folder:
        session = HandOff(
            hand_off_plan(),
            methods=methods,
            rounds=rounds,
            progress=told_on(console),
            heard=tally.add,
        )
        options = RunOptions(host=DEFAULT_HOST, port=0, state_directory=Path(folder), launch=LAUNCH)
        status = run_plan(session.plan, options, session, console)
    if not session.done:
        raise typer.Exit(status or 1)
