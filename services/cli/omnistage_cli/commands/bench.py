"""`omnistage bench`: benchmarks that a user can run where it matters to them.

What they measure with comes with the extra `bench` and is imported when it is wanted, since every
other command must work without.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from omnistage_cli.bench.first_audio import FirstAudio, FirstAudioReport, pace_of, report_of
from omnistage_cli.bench.orders import ListenResult
from omnistage_cli.commands.options import DEFAULT_HOST
from omnistage_cli.commands.planning import plan_from
from omnistage_cli.runtime import RunOptions, run_plan
from omnistage_common.errors import MissingDependency, SetupError
from omnistage_common.pipeline.plan import PipelinePlan

if TYPE_CHECKING:
    from omnistage_cli.bench.overhead import OverheadReport

__all__ = ["bench_app"]

_DEFAULT_FILE: Final = Path("deploy/pipelines/simulated-omni.yaml")

_STREAMING_FILE: Final = Path("deploy/pipelines/simulated-streaming.yaml")

_OVERHEAD_EXAMPLES: Final = """
Examples:

  omnistage bench overhead

  omnistage bench overhead --json > overhead.json

  omnistage bench overhead --clients 32 --requests 5000
"""

_FIRST_AUDIO_EXAMPLES: Final = """
Examples:

  omnistage bench first-audio

  omnistage bench first-audio --json > first-audio.json
"""

bench_app = typer.Typer(
    name="bench", help="Measure the platform on this machine.", no_args_is_help=True
)


@bench_app.callback()
def _bench() -> None:
    """Measure the platform on this machine."""


@bench_app.command(epilog=_OVERHEAD_EXAMPLES)
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
    _check_here(file, _DEFAULT_FILE)
    from omnistage_cli.bench.overhead import Overhead, OverheadOptions  # noqa: PLC0415

    progress = Console(stderr=True)
    measure = Overhead(
        plan_from(file, None, ()),
        OverheadOptions(clients=tuple(clients), requests=requests, rounds=rounds),
        lambda step: progress.print(f"bench: {step}", markup=False, highlight=False),
    )
    options = RunOptions(host=DEFAULT_HOST, port=0)
    status = run_plan(measure.plan, options, measure, progress)
    if measure.report is None:
        raise typer.Exit(status or 1)
    if as_json:
        sys.stdout.write(msgspec.json.encode(measure.report).decode() + "\n")
    else:
        Console().print(_table(measure.report))


@bench_app.command(name="first-audio", epilog=_FIRST_AUDIO_EXAMPLES)
def first_audio(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Pipeline of three simulated stages.")
    ] = _STREAMING_FILE,
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
    _check_here(file, _STREAMING_FILE)
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
        Console().print(_first_audio_table(report))


def _listened(plan: PipelinePlan, requests: int, progress: Console) -> ListenResult:
    listen = FirstAudio(
        plan,
        requests,
        lambda step: progress.print(f"bench: {step}", markup=False, highlight=False),
    )
    status = run_plan(plan, RunOptions(host=DEFAULT_HOST, port=0), listen, progress)
    if listen.result is None:
        raise typer.Exit(status or 1)
    return listen.result


def _first_audio_table(report: FirstAudioReport) -> Table:
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


def _check_here(file: Path, default: Path) -> None:
    missing = [name for name in ("aiohttp", "psutil") if find_spec(name) is None]
    if missing:
        raise MissingDependency(
            f"{' and '.join(missing)} cannot be imported, with which benchmarks measure. Install"
            " them: pip install 'omnistage[bench]'"
        )
    if not file.exists() and file == default:
        raise SetupError(
            f"{file} is not here: run this in a clone of the repository, or name a pipeline file",
            field="FILE",
        )


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
