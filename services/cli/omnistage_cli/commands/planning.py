"""From what a user types to a plan: the one way in which commands come to theirs."""

from collections.abc import Sequence
from pathlib import Path

from omnistage_common.ids import PipelineName
from omnistage_common.pipeline.loading import load_file
from omnistage_common.pipeline.overrides import parse_override
from omnistage_common.pipeline.plan import PipelinePlan
from omnistage_common.pipeline.resolver import resolve

__all__ = ["plan_from"]


def plan_from(file: Path, pipeline: str | None, overrides: Sequence[str]) -> PipelinePlan:
    """The plan of a pipeline in a file.

    Args:
        file: YAML with the pipeline's resources.
        pipeline: Its name; None when the file has only one.
        overrides: `path=value` each.

    Raises:
        InvalidPipeline: The file, an override or the pipeline has problems; says all of them.
    """
    return resolve(
        load_file(file),
        pipeline=None if pipeline is None else PipelineName(pipeline),
        overrides=tuple(parse_override(text) for text in overrides),
    )
