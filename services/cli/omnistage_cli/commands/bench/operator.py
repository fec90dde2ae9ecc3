"""`omnistage bench operator`: what the operator costs, on a real API server, where no pod computes."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from omnistage_cli.commands.bench.starting import check_extra, told_on
from omnistage_common.telemetry import configure_logging

if TYPE_CHECKING:
    from omnistage_cli.bench.operator.figures import OperatorReport

__all__ = ["EXAMPLES", "operator"]

EXAMPLES: Final = """
Examples:

  omnistage bench operator --pipelines 50

  omnistage bench operator --context staging --json > operator.json
"""

_MOST_SHOWN: Final = 12


def operator(
    pipelines: Annotated[
        int, typer.Option(min=1, max=10_000, help="Pipelines of three stages.")
    ] = 1000,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Kubeconfig file; left out for what kubectl uses.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
    limit: Annotated[
        float, typer.Option(min=1, help="Seconds for the pipelines to become ready.")
    ] = 600,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Measure what the operator costs, on a real API server with simulated nodes.

    Brings up pipelines whose pods run in word only, then starts the operator anew and looks whether it
    writes anything. The operator runs on this machine, in a namespace of its own; everything is removed
    in the end.
    """
    check_extra("aiohttp", "psutil", "kubernetes")
    from omnistage_cli.bench.operator.running import Wanted, measure  # noqa: PLC0415

    configure_logging(component="bench", level="WARNING")
    wanted = Wanted(pipelines=pipelines, limit_s=limit, kubeconfig=kubeconfig, context=context)
    console = Console(stderr=True)
    with _Bar(console, pipelines) as bar:
        report = measure(wanted, bar)
    if report is None:
        told_on(console)("interrupted; nothing is left")
        raise typer.Exit(1)
    if as_json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        Console().print(_table(report))


class _Bar:
    """A bar on a terminal; elsewhere a line for each step."""

    def __init__(self, console: Console, pipelines: int) -> None:
        self._tell = told_on(console)
        self._progress = Progress(
            TextColumn("bench: {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            refresh_per_second=4,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("pipelines ready", total=pipelines)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step(self, words: str) -> None:
        """Something else begins."""
        self._tell(words)

    def ready(self, count: int) -> None:
        """So many pipelines are ready."""
        self._progress.update(self._task, completed=count)


def _table(report: "OperatorReport") -> Table:
    machine = report.machine
    share = report.cpu_seconds / machine.busy_seconds if machine.busy_seconds else 0.0
    table = Table(
        title=f"The operator with {report.pipelines} pipelines of three stages",
        caption=f"{machine.cores} cores were busy for {machine.busy_seconds:g} s, of these"
        f" {share:.0%} by the operator and {machine.bench_seconds:g} s by this benchmark",
    )
    table.add_column("what")
    table.add_column("measured", justify="right")
    for what, value in (
        ("all ready after", f"{report.seconds_to_ready:g} s"),
        ("memory of the operator", f"{report.rss_mb:g} MB"),
        ("CPU time of the operator", f"{report.cpu_seconds:g} s"),
        ("  for each pipeline", f"{report.cpu_ms_per_pipeline:g} ms"),
        ("requests for each pipeline", f"{report.requests_per_pipeline:g}"),
        ("a restart takes", f"{report.restart_seconds:g} s"),
        ("  and writes", str(report.idle_writes)),
        ("  and changes pods", str(report.restart_pod_changes)),
    ):
        table.add_row(what, value)
    table.add_section()
    for what, count in list(report.requests.items())[:_MOST_SHOWN]:
        table.add_row(what, f"{count / report.pipelines:.2f} each")
    for controller, count in report.reconciles.items():
        table.add_row(f"reconciles: {controller}", f"{count / report.pipelines:.2f} each")
    return table
