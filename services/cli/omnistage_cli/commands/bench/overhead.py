"""`omnistage bench overhead`: what the platform costs where nothing computes."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from omnistage_cli.commands.bench.starting import check_here, told_on
from omnistage_cli.commands.options import DEFAULT_HOST
from omnistage_cli.commands.planning import plan_from
from omnistage_cli.runtime import RunOptions, run_plan

if TYPE_CHECKING:
    from omnistage_cli.bench.overhead import OverheadReport

__all__ = ["EXAMPLES", "overhead"]

EXAMPLES: Final = """
Examples:

  omnistage bench overhead

  omnistage bench overhead --json > overhead.json

  omnistage bench overhead --clients 32 --requests 5000
"""

_DEFAULT_FILE: Final = Path("deploy/pipelines/simulated-omni.yaml")


def overhead(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Pipeline whose stages compute nothing.")
    ] = _DEFAULT_FILE,
    clients: Annotated[
        list[int], typer.Option(min=1, max=1024, help="Clients at once; may be repeated.")
    ] = [1, 8, 32],  # noqa: B006 - typer copies it
    requests: Annotated[int, typer.Option(min=10, max=100_000, help="Requests per round.")] = 2000,
    rounds: Annotated[int, typer.Option(min=1, max=20, help="Rounds per load.")] = 3,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Measure what the platform costs where nothing computes.

    Starts gateway and stages, loads them from one to 32 clients, streamed and not, and reports
    latency, throughput, memory, time to ready and CPU time while idle.
    """
    check_here(file, _DEFAULT_FILE)
    from omnistage_cli.bench.overhead import Overhead, OverheadOptions  # noqa: PLC0415

    progress = Console(stderr=True)
    measure = Overhead(
        plan_from(file, None, ()),
        OverheadOptions(clients=tuple(clients), requests=requests, rounds=rounds),
        told_on(progress),
    )
    options = RunOptions(host=DEFAULT_HOST, port=0)
    status = run_plan(measure.plan, options, measure, progress)
    if measure.report is None:
        raise typer.Exit(status or 1)
    if as_json:
        sys.stdout.write(msgspec.json.encode(measure.report).decode() + "\n")
    else:
        Console().print(_table(measure.report))


def _table(report: "OverheadReport") -> Table:
    memory, after = report.memory_mb, report.memory_after_mb
    table = Table(
        title=f"Overhead of three stages without compute, {report.cores} cores",
        caption=f"gateway {memory.gateway} MB ({after.gateway} after the load), a stage"
        f" {memory.stage} MB ({after.stage}); ready in {report.ready_s} s;"
        f" idle {report.idle_cpu_percent} % of a core",
    )
    for heading in ("clients", "answer", "p50 ms", "p95 ms", "p99 ms", "requests/s", "CPU µs each"):
        table.add_column(heading, justify="right")
    for run in report.runs:
        table.add_row(
            str(run.clients),
            "streamed" if run.streamed else "whole",
            f"{run.p50_ms:.2f}",
            f"{run.p95_ms:.2f}",
            f"{run.p99_ms:.2f}",
            f"{run.rps:,.0f}",
            f"{sum(run.cpu_us.values()):.0f}",
        )
    return table
