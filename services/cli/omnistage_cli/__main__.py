"""`omnistage`: where every command is put together, and where an error becomes a line and a code.

Exit codes: 0 done; 1 it could not be done, and the line says why; 2 the command was mistyped or its
file cannot be read; 130 the user did not wait for a clean end.
"""

import sys
from importlib.metadata import version
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from omnistage_cli.commands import demo as demo_command
from omnistage_cli.commands import doctor as doctor_command
from omnistage_cli.commands import render as render_command
from omnistage_cli.commands import up as up_command
from omnistage_cli.commands import validate as validate_command
from omnistage_cli.commands.bench import bench_app
from omnistage_cli.commands.reporting import print_problems
from omnistage_common.errors import OmnistageError
from omnistage_common.pipeline.loading import UnreadableFile
from omnistage_common.pipeline.problems import ResourceProblems

__all__ = ["app", "main"]

_EXAMPLES: Final = """
Examples:

  omnistage demo

  omnistage up deploy/pipelines/voice-assistant.yaml

  omnistage validate deploy/pipelines/voice-assistant.yaml

  omnistage render deploy/pipelines/voice-assistant.yaml

  omnistage doctor voice-assistant
"""

app = typer.Typer(
    name="omnistage",
    help="Serve omni-modality models as pipelines of stage services.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=up_command.EXAMPLES)(up_command.up)
app.command(epilog=demo_command.EXAMPLES)(demo_command.demo)
app.command(epilog=validate_command.EXAMPLES)(validate_command.validate)
app.command(epilog=render_command.EXAMPLES)(render_command.render)
app.command(epilog=doctor_command.EXAMPLES)(doctor_command.doctor)
app.add_typer(bench_app)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        typer.echo(f"omnistage {version('omnistage')}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs the command line."""
    console = Console(stderr=True)
    try:
        app()
    except ResourceProblems as error:
        print_problems(console, error.problems)
        sys.exit(1)
    except OmnistageError as error:
        console.print(Text.assemble(("error: ", "bold red"), error.message), soft_wrap=True)
        sys.exit(2 if isinstance(error, UnreadableFile) else 1)


if __name__ == "__main__":
    main()
