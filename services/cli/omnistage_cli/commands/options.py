"""Arguments and options that several commands share, so that they read the same everywhere."""

from pathlib import Path
from typing import Annotated, Final

import typer

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "FileArgument",
    "HostOption",
    "PipelineOption",
    "PortOption",
    "SetOption",
    "StateDirectoryOption",
]

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8000
_LAST_PORT: Final = 65_535

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="YAML file with the pipeline's resources.")
]

PipelineOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Which pipeline of the file; needed when it holds several."),
]

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override a value, e.g. stages.thinker.replicas=2; may be repeated.",
    ),
]

HostOption = Annotated[
    str,
    typer.Option(metavar="ADDRESS", help="Where the gateway listens; 0.0.0.0 is everywhere."),
]

PortOption = Annotated[
    int,
    typer.Option(min=0, max=_LAST_PORT, help="Port of the gateway; 0 picks a free one."),
]

StateDirectoryOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Where plan and logs go; $XDG_STATE_HOME/omnistage/<pipeline>-<pid> when not given.",
    ),
]
