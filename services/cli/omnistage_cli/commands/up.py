"""`omnistage up`: serves a pipeline on this machine until the user has had enough."""

from typing import Final

import typer
from rich.console import Console

from omnistage_cli.commands.options import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    FileArgument,
    HostOption,
    PipelineOption,
    PortOption,
    SetOption,
    StateDirectoryOption,
)
from omnistage_cli.commands.planning import plan_from
from omnistage_cli.runtime import RunOptions, check_folders, run_plan, until_interrupted

__all__ = ["EXAMPLES", "up"]

EXAMPLES: Final = """
Examples:

  omnistage up deploy/pipelines/voice-assistant.yaml

  omnistage up pipeline.yaml --port 9000 --set stages.thinker.replicas=2
"""


def up(
    file: FileArgument,
    pipeline: PipelineOption = None,
    overrides: SetOption = None,
    host: HostOption = DEFAULT_HOST,
    port: PortOption = DEFAULT_PORT,
    state_dir: StateDirectoryOption = None,
) -> None:
    """Serve a pipeline on this machine: every stage replica and a gateway, as local processes.

    Ctrl-C finishes the requests that are under way, stops everything and leaves nothing behind; a
    second Ctrl-C does not wait. A stage that dies is started again.
    """
    plan = plan_from(file, pipeline, overrides or ())
    check_folders(plan)
    options = RunOptions(host=host, port=port, state_directory=state_dir)
    code = run_plan(plan, options, until_interrupted, Console())
    raise typer.Exit(code)
