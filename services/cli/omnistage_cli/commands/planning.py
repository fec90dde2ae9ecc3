"""From what a user types to a plan: the one way in which commands come to theirs."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from omnistage_cli.commands.reporting import print_problems
from omnistage_common.ids import PipelineName
from omnistage_common.pipeline.loading import load_file
from omnistage_common.pipeline.overrides import parse_override
from omnistage_common.pipeline.plan import PipelinePlan
from omnistage_common.pipeline.problems import Severity
from omnistage_common.pipeline.resolver import resolve
from omnistage_common.pipeline.validation import check

__all__ = ["plan_from"]


def plan_from(file: Path, pipeline: str | None, overrides: Sequence[str]) -> PipelinePlan:
    """The plan of a pipeline in a file; warnings about the file go to standard error.

    Args:
        file: YAML with the pipeline's resources.
        pipeline: Its name; None when the file has only one.
        overrides: `path=value` each.

    Raises:
        InvalidPipeline: The file, an override or the pipeline has problems; says all of them.
    """
    resources = load_file(file)
    settings = tuple(parse_override(text) for text in overrides)
    plan = resolve(
        resources,
        pipeline=None if pipeline is None else PipelineName(pipeline),
        overrides=settings,
    )
    warnings = [
        problem
        for problem in check(resources, overrides=settings)
        if problem.severity is Severity.WARNING
    ]
    print_problems(Console(stderr=True), warnings)
    return plan
