"""Prepares the weights of a plan before anything starts, so that whoever waits sees for what.

Stages prepare their own weights when they load and need none of this. It runs in processes of its
own, because what reads weights has no place in a command line.
"""

import subprocess
import sys
from collections.abc import Callable
from typing import Final

from omnistage_common.errors import InvalidWeights
from omnistage_common.pipeline.plan import PipelinePlan, StagePlan

__all__ = ["check_folders", "prepare_weights"]

_FOLDER_SCHEME: Final = "file://"


def prepare_weights(plan: PipelinePlan, progress: Callable[[str], None]) -> None:
    """Makes sure that the weights of every stage are there and whole.

    Args:
        plan: The pipeline.
        progress: Told about each step.

    Raises:
        InvalidWeights: Some are not to be had, or not what the stage's engine reads; names the
            stage and says why.
    """
    told: set[str] = set()
    for stage in _one_of_each(plan):
        if stage.model not in told:
            told.add(stage.model)
            progress(f"weights: {stage.model}")
        _prepare(stage, progress)


def check_folders(plan: PipelinePlan) -> None:
    """Looks at the model folders of this machine; nothing is fetched or made.

    Raises:
        InvalidWeights: One is not there, or not what its stage's engine reads; names the stage.
    """
    for stage in _one_of_each(plan):
        if stage.model.startswith(_FOLDER_SCHEME):
            _prepare(stage, lambda _step: None)


def _one_of_each(plan: PipelinePlan) -> list[StagePlan]:
    """The first stage for each model source and engine."""
    found: dict[tuple[str, str], StagePlan] = {}
    for stage in plan.stages:
        if stage.model:
            found.setdefault((stage.model, stage.engine), stage)
    return list(found.values())


def _prepare(stage: StagePlan, progress: Callable[[str], None]) -> None:
    arguments = (
        *(sys.executable, "-P", "-m", "omnistage_stage.weights", "prepare"),
        *("--engine", stage.engine, stage.model),
    )
    said = ""
    with subprocess.Popen(  # noqa: S603 - our own interpreter and module
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        for line in child.stderr or ():
            said = line.strip()
            progress(f"weights: {said}")
    if child.returncode:
        field = f"stages.{stage.name}.model"
        reason = said or f"the weights of {stage.model} cannot be prepared"
        raise InvalidWeights(f"{field}: {reason}", field=field)
