"""The local runtime: a plan as supervised processes on this machine."""

from omnistage_cli.runtime.launching import Launch, Site
from omnistage_cli.runtime.local import LocalRuntime, Observer, Session, until_interrupted
from omnistage_cli.runtime.preparing import check_folders, prepare_weights
from omnistage_cli.runtime.running import RunOptions, run_plan
from omnistage_cli.runtime.supervision import RestartPolicy

__all__ = [
    "Launch",
    "LocalRuntime",
    "Observer",
    "RestartPolicy",
    "RunOptions",
    "Session",
    "Site",
    "check_folders",
    "prepare_weights",
    "run_plan",
    "until_interrupted",
]
