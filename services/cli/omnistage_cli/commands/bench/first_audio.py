"""`omnistage bench first-audio`: how early the first sound of an answer comes."""

import sys
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from omnistage_cli.bench.first_audio import FirstAudio, FirstAudioReport, pace_of, report_of
from omnistage_cli.bench.orders import ListenResult
from omnistage_cli.commands.bench.starting import check_here, told_on
from omnistage_cli.commands.options import DEFAULT_HOST
from omnistage_cli.commands.planning import plan_from
from omnistage_cli.runtime import RunOptions, run_plan
from omnistage_common.pipeline.plan import PipelinePlan

__all__ = ["EXAMPLES", "first_audio"]

EXAMPLES: Final = """
Examples:

  omnistage bench first-audio

  omnistage bench first-audio --json > first-audio.json
"""

_DEFAULT_FILE: Final = Path("deploy/pipelines/simulated-streaming.yaml")


def first_audio(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Pipeline of three simulated stages.")
    ] = _DEFAULT_FILE,
    requests: Annotated[int, typer.Option(min=1, max=1000, help="Answers to listen to.")] = 5,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Measure how early the first sound of an answer comes, with streaming and without.

    Starts a pipeline with the pace of an omni model and no model in it, once with stages that hand
    over while they run and once with stages that wait for one another, and compares both with the
    least that the stages' own costs allow.
    """
    check_here(file, _DEFAULT_FILE)
    plan = plan_from(file, None, ())
    pace_of(plan)
    progress = Console(stderr=True)
    streamed, unstreamed = (
        _listened(plan_from(file, None, overrides), requests, progress)
        for overrides in ((), ("streaming.chunked=false",))
    )
    report = report_of(plan, streamed, unstreamed)
    if as_json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        Console().print(_table(report))


def _listened(plan: PipelinePlan, requests: int, progress: Console) -> ListenResult:
    listen = FirstAudio(plan, requests, told_on(progress))
    status = run_plan(plan, RunOptions(host=DEFAULT_HOST, port=0), listen, progress)
    if listen.result is None:
        raise typer.Exit(status or 1)
    return listen.result


def _table(report: FirstAudioReport) -> Table:
    table = Table(
        title=f"First audio of an answer of {report.answer_seconds:g} s",
        caption=f"streaming takes {report.ratio:.1%} of the time and adds"
        f" {report.added_per_edge_ms:.2f} ms per edge to the least possible",
    )
    for heading in ("stages", "first audio ms", "least possible ms"):
        table.add_column(heading, justify="right")
    table.add_row("streaming", f"{report.streamed_ms:.1f}", f"{report.minimum_ms:.1f}")
    table.add_row("in turn", f"{report.unstreamed_ms:.1f}", f"{report.unstreamed_minimum_ms:.1f}")
    return table
