"""Prepares the weights of a plan before anything starts, so that whoever waits sees for what.

Stages prepare their own weights when they load and need none of this. It runs in processes of its
own, because what reads weights has no place in a command line.
"""

import subprocess
import sys
from collections.abc import Callable

from omnistage_common.errors import InvalidWeights
from omnistage_common.pipeline.plan import PipelinePlan

__all__ = ["prepare_weights"]


def prepare_weights(plan: PipelinePlan, progress: Callable[[str], None]) -> None:
    """Makes sure that the weights of every stage are there and whole.

    Args:
        plan: The pipeline.
        progress: Told about each step.

    Raises:
        InvalidWeights: Some are not to be had; says why.
    """
    for source in dict.fromkeys(stage.model for stage in plan.stages if stage.model):
        _prepare(source, progress)


def _prepare(source: str, progress: Callable[[str], None]) -> None:
    progress(f"weights: {source}")
    arguments = (sys.executable, "-P", "-m", "omnistage_stage.weights", "prepare", source)
    said = ""
    with subprocess.Popen(  # noqa: S603 - our own interpreter and module
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        for line in child.stderr or ():
            said = line.strip()
            progress(f"weights: {said}")
    if child.returncode:
        raise InvalidWeights(said or f"the weights of {source} cannot be prepared", field="model")
