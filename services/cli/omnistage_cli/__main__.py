"""`omnistage`: where every command is put together, and where an error becomes a line and a code.

Exit codes: 0 done; 1 it could not be done, and the line says why; 2 the command was mistyped; 130 the
user did not wait for a clean end.
"""

import sys
from importlib.metadata import version
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from omnistage_cli.commands import demo as demo_command
from omnistage_cli.commands import up as up_command
from omnistage_cli.commands.render import render
from omnistage_cli.commands.validate import validate
from omnistage_common.errors import OmnistageError

__all__ = ["app", "main"]

_EXAMPLES: Final = """
Examples:

  omnistage demo                                            ask a spoken question, once

  omnistage up deploy/pipelines/voice-assistant.yaml        serve it on this machine

  omnistage validate deploy/pipelines/voice-assistant.yaml  find every problem in it

  omnistage render deploy/pipelines/voice-assistant.yaml    see every value and its origin
"""

app = typer.Typer(
    name="omnistage",
    help="Serve omni-modality models as pipelines of stage services.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=up_command.EXAMPLES)(up_command.up)
app.command(epilog=demo_command.EXAMPLES)(demo_command.demo)
app.command()(render)
app.command()(validate)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"omnistage {version('omnistage')}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=lambda wanted: _print_version(wanted=wanted),
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs the command line."""
    try:
        app()
    except OmnistageError as error:
        console = Console(stderr=True)
        console.print(Text.assemble(("error: ", "bold red"), error.message), soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
