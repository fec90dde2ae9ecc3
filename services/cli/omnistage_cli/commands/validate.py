"""`omnistage validate`: every problem of pipeline files at once."""

from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from omnistage_cli.commands.reporting import counted, print_problems
from omnistage_common.ids import PipelineName
from omnistage_common.pipeline.loading import Resources, UnreadableFile, load_files
from omnistage_common.pipeline.problems import Problem, Severity
from omnistage_common.pipeline.resolver import resolve
from omnistage_common.pipeline.validation import check

__all__ = ["EXAMPLES", "validate"]

EXAMPLES: Final = """
Examples:

  omnistage validate deploy/pipelines/voice-assistant.yaml

  omnistage validate templates.yaml runtimes.yaml my-pipeline.yaml
"""


def validate(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="YAML files; what one refers to may stand in another."
        ),
    ],
) -> None:
    """Find every problem in pipeline files, without running anything.

    Each problem is one line: file:line: field: what is wrong (what to do). The exit code is 0 when
    there are none but warnings, 1 when there are, and 2 when a file cannot be read.
    """
    console = Console()
    try:
        resources = load_files(files)
    except UnreadableFile as error:
        Console(stderr=True).print(Text(error.message, "red"), soft_wrap=True)
        raise typer.Exit(2) from error
    problems = check(resources)
    print_problems(console, problems)
    if _errors(problems):
        warnings = len(problems) - _errors(problems)
        found = counted(_errors(problems), "error")
        if warnings:
            found += f", {counted(warnings, 'warning')}"
        console.print(Text(found, "red"))
        raise typer.Exit(1)
    _print_summary(console, resources)


def _errors(problems: tuple[Problem, ...]) -> int:
    return sum(problem.severity is Severity.ERROR for problem in problems)


def _print_summary(console: Console, resources: Resources) -> None:
    for document in resources.pipelines:
        name = PipelineName(document.resource.metadata.name)
        plan = resolve(resources, pipeline=name)
        line = Text.assemble(
            (name, "green"),
            f": valid, {counted(len(plan.stages), 'stage')} "
            f"({', '.join(stage.name for stage in plan.stages)}), revision {plan.revision}",
        )
        console.print(line, soft_wrap=True)
    if not resources.pipelines:
        count = len(resources.templates) + len(resources.runtimes) + len(resources.stages)
        console.print(f"{counted(count, 'resource')} valid, no pipeline among them")
