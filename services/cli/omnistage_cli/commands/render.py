"""`omnistage render`: the plan of a pipeline, each value with where it came from."""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from omnistage_cli.commands.options import FileArgument, PipelineOption, SetOption
from omnistage_cli.commands.plan_text import plan_lines, plan_rows
from omnistage_cli.commands.reporting import print_problems
from omnistage_common.ids import PipelineName
from omnistage_common.pipeline.loading import UnreadableFile, load_file
from omnistage_common.pipeline.overrides import parse_override
from omnistage_common.pipeline.plan import PipelinePlan, encode_plan
from omnistage_common.pipeline.problems import ResourceProblems, Severity
from omnistage_common.pipeline.resolver import resolve
from omnistage_common.pipeline.validation import check

__all__ = ["EXAMPLES", "PlanFormat", "render"]

EXAMPLES: Final = """
Examples:

  omnistage render deploy/pipelines/voice-assistant.yaml

  omnistage render pipelines.yaml --pipeline chat --format json

  omnistage render pipeline.yaml --set stages.thinker.engineArgs.max_num_seqs=8
"""


class PlanFormat(Enum):
    """How to show a plan."""

    YAML = "yaml"
    JSON = "json"
    TABLE = "table"


def render(
    file: FileArgument,
    pipeline: PipelineOption = None,
    overrides: SetOption = None,
    plan_format: Annotated[
        PlanFormat,
        typer.Option("--format", help="yaml shows origins as comments; json is the plan itself."),
    ] = PlanFormat.YAML,
) -> None:
    """Show the plan of a pipeline: every value final, each with where it came from.

    Origins, later ones win: built-in, template, runtime, pipeline, command line.
    """
    plan = _plan(file, pipeline, overrides or ())
    if plan_format is PlanFormat.JSON:
        typer.echo(encode_plan(plan).decode())
    elif plan_format is PlanFormat.TABLE:
        Console().print(_table(plan))
    else:
        console = Console()
        for line in plan_lines(plan):
            comment = (f"  # {line.origin.value}", "bright_black") if line.origin else ""
            console.print(Text.assemble(line.text, comment), soft_wrap=True)


def _plan(file: Path, pipeline: str | None, texts: Sequence[str]) -> PipelinePlan:
    """The plan; where there is none, says why and exits."""
    console = Console(stderr=True)
    try:
        resources = load_file(file)
        overrides = [parse_override(text) for text in texts]
        plan = resolve(
            resources,
            pipeline=PipelineName(pipeline) if pipeline is not None else None,
            overrides=overrides,
        )
    except UnreadableFile as error:
        console.print(Text(error.message, "red"), soft_wrap=True)
        raise typer.Exit(2) from error
    except ResourceProblems as error:
        print_problems(console, error.problems)
        raise typer.Exit(1) from error
    problems = check(resources, overrides=overrides)
    print_problems(console, [each for each in problems if each.severity is Severity.WARNING])
    return plan


def _table(plan: PipelinePlan) -> Table:
    table = Table(title=f"{plan.name}, revision {plan.revision}")
    for column in ("value", "is", "from"):
        table.add_column(column, overflow="fold")
    for row in plan_rows(plan):
        table.add_row(Text(row.path), Text(row.value), Text(row.origin.value if row.origin else ""))
    return table
