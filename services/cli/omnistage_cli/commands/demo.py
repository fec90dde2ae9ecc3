"""`omnistage demo`: one spoken question through a real pipeline, and what it took."""

import asyncio
from pathlib import Path
from typing import Annotated, Final

import typer
from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from omnistage_cli.asking import Question, Reply, ask, question_from
from omnistage_cli.commands.options import DEFAULT_HOST, PortOption, StateDirectoryOption
from omnistage_cli.commands.planning import plan_from
from omnistage_cli.runtime import RunOptions, Site, prepare_weights, run_plan, until_interrupted
from omnistage_common.errors import SetupError
from omnistage_common.pipeline.plan import Modality, PipelinePlan

__all__ = ["EXAMPLES", "demo"]

EXAMPLES: Final = """
Examples:

  omnistage demo

  omnistage demo --question "What is the capital of Italy?" --output italy.wav

  omnistage demo --keep-running --port 8000
"""

_DEFAULT_FILE: Final = Path("deploy/pipelines/voice-assistant.yaml")
_DEFAULT_QUESTION: Final = Path("deploy/samples/question.wav")
_DEFAULT_OUTPUT: Final = Path("answer.wav")


class _Demonstration(Struct, frozen=True, kw_only=True):
    """One question to one running pipeline."""

    plan: PipelinePlan
    question: Question
    output: Path
    keep_running: bool
    console: Console

    async def __call__(self, site: Site) -> None:
        spoken = any(output.modality is Modality.AUDIO for output in self.plan.outputs)
        model = self.plan.served_names[0]
        reply = await asyncio.to_thread(ask, site.url, model, self.question, spoken=spoken)
        _show(self.console, self.question, reply)
        if reply.audio:
            _save(self.output, reply.audio)
            self.console.print(
                Text.assemble("The spoken answer is in ", (str(self.output), "bold"))
            )
        if self.keep_running:
            await until_interrupted(site)


def demo(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="YAML file with the pipeline's resources.")
    ] = _DEFAULT_FILE,
    question: Annotated[
        str, typer.Option(metavar="WAV|TEXT", help="A recording of the question, or its words.")
    ] = str(_DEFAULT_QUESTION),
    output: Annotated[
        Path, typer.Option(metavar="WAV", help="Where the spoken answer goes.")
    ] = _DEFAULT_OUTPUT,
    port: PortOption = 0,
    state_dir: StateDirectoryOption = None,
    *,
    keep_running: Annotated[
        bool, typer.Option("--keep-running", help="Go on serving after the answer.")
    ] = False,
) -> None:
    """Ask a real pipeline a spoken question and hear its answer.

    Prepares the weights, starts every stage and a gateway on this machine, asks over the public
    HTTP API, prints what was recognised and answered, saves the spoken answer, shows the time of
    each stage, and stops everything.
    """
    if not file.exists() and file == _DEFAULT_FILE:
        raise SetupError(
            f"{file} is not here: run this in a clone of the repository, or name a pipeline file",
            field="FILE",
        )
    console = Console()
    plan = plan_from(file, None, ())
    session = _Demonstration(
        plan=plan,
        question=question_from(question),
        output=output,
        keep_running=keep_running,
        console=console,
    )
    prepare_weights(plan, lambda step: console.print(step, markup=False, highlight=False))
    options = RunOptions(host=DEFAULT_HOST, port=port, state_directory=state_dir)
    raise typer.Exit(run_plan(plan, options, session, console))


def _save(path: Path, audio: bytes) -> None:
    try:
        path.write_bytes(audio)
    except OSError as error:
        raise SetupError(
            f"cannot write {path}: {error.strerror}; choose another with --output",
            field="--output",
        ) from error


def _show(console: Console, question: Question, reply: Reply) -> None:
    heard = " ".join(reply.transcripts) or question.text
    label = "Recognised question" if reply.transcripts else "Question"
    console.print(Text.assemble((f"{label}: ", "bold"), heard))
    console.print(Text.assemble(("Answer: ", "bold"), reply.text))
    table = Table(title="Time per stage", title_justify="left")
    table.add_column("stage", no_wrap=True)
    for heading in ("waited ms", "ran ms", "first output ms", "tokens in", "tokens out"):
        table.add_column(heading, justify="right")
    for stage in reply.stages:
        first = "" if stage.first_output_ms is None else f"{stage.first_output_ms:.1f}"
        table.add_row(
            stage.name,
            f"{stage.queue_ms:.1f}",
            f"{stage.run_ms:.1f}",
            first,
            str(stage.input_tokens or ""),
            str(stage.output_tokens or ""),
        )
    table.add_section()
    table.add_row("total", "", f"{reply.total_ms:.1f}", "", "", "")
    table.add_row("seen by client", "", f"{reply.elapsed_ms:.1f}", "", "", "")
    console.print(table)
