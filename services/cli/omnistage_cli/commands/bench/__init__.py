"""`omnistage bench`: benchmarks that a user can run where it matters to them.

One module per command. What some measure with comes with the extra `bench` and is imported when it is
wanted, since every other command must work without.
"""

import typer

from omnistage_cli.commands.bench import first_audio as first_audio_command
from omnistage_cli.commands.bench import operator as operator_command
from omnistage_cli.commands.bench import overhead as overhead_command
from omnistage_cli.commands.bench import transfer as transfer_command

__all__ = ["bench_app"]

bench_app = typer.Typer(
    name="bench", help="Measure the platform on this machine.", no_args_is_help=True
)


@bench_app.callback()
def _bench() -> None:
    """Measure the platform on this machine."""


bench_app.command(epilog=overhead_command.EXAMPLES)(overhead_command.overhead)
bench_app.command(name="first-audio", epilog=first_audio_command.EXAMPLES)(
    first_audio_command.first_audio
)
bench_app.command(epilog=operator_command.EXAMPLES)(operator_command.operator)
bench_app.command(epilog=transfer_command.EXAMPLES)(transfer_command.transfer)
