"""What a run shows: a live table on a terminal, one line per event anywhere else.

Displays are told what happened and only show it; nothing of the run depends on them.
"""

import time
from typing import Final, Self

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from omnistage_cli.runtime.launching import Member, Site
from omnistage_cli.runtime.replica_client import ReplicaReport
from omnistage_cli.runtime.supervision import ReplicaPhase, Supervision
from omnistage_cli.runtime.wording import (
    curl_example,
    exit_in_words,
    log_line_in_words,
    mebibytes,
    state_in_words,
)
from omnistage_common.ids import ModelName

__all__ = ["Display", "LiveDisplay", "PlainDisplay", "display_for"]

_STYLES: Final = {
    ReplicaPhase.STARTING: "cyan",
    ReplicaPhase.LOADING: "cyan",
    ReplicaPhase.READY: "green",
    ReplicaPhase.BACKING_OFF: "yellow",
    ReplicaPhase.STOPPING: "magenta",
    ReplicaPhase.STOPPED: "dim",
    ReplicaPhase.GIVEN_UP: "bold red",
}
_MOVING: Final = {ReplicaPhase.STARTING, ReplicaPhase.LOADING, ReplicaPhase.STOPPING}
_WITH_PROCESS: Final = {ReplicaPhase.STARTING, ReplicaPhase.BACKING_OFF}
"""Phases that begin with the start or the end of a process: seconds count from there."""
_REFRESHES_PER_SECOND: Final = 4


class PlainDisplay:
    """One line per event, for logs and pipes."""

    wants_reports = False

    def __init__(self, console: Console, model: ModelName) -> None:
        self._console = console
        self._model = model
        self._started: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def laid_out(self, members: tuple[Member, ...]) -> None:
        """Says what will start."""
        self._say(f"starting {', '.join(member.name for member in members)}")

    def changed(self, member: Member, state: Supervision, tail: tuple[str, ...]) -> None:
        """Says what happened to a process, with the end of its log when it crashed."""
        if state.phase is ReplicaPhase.STARTING:
            self._started[member.name] = time.monotonic()
        seconds = time.monotonic() - self._started.get(member.name, time.monotonic())
        match state.phase:
            case ReplicaPhase.READY:
                words = f"ready after {seconds:.1f} s"
            case ReplicaPhase.BACKING_OFF:
                words = state_in_words(state, 0.0)
            case ReplicaPhase.GIVEN_UP:
                words = state_in_words(state, 0.0)
            case _:
                words = state.phase.value
        self._say(f"{member.name}: {words}")
        for line in tail:
            self._say(f"  {member.name} | {log_line_in_words(line)}")
        if tail:
            self._say(f"  {member.name} | the whole log: {member.command.log}")

    def reported(self, member: Member, report: ReplicaReport) -> None:
        """Shows nothing: a line every second would bury the events."""

    def ready(self, site: Site) -> None:
        """Says where to ask, and how."""
        self._say(f"ready: {site.url}/v1")
        self._say(f"try: {curl_example(site, self._model)}")

    def stopping(self) -> None:
        """Says that the end has begun."""
        self._say("stopping: finishing requests")

    def _say(self, words: str) -> None:
        self._console.print(words, markup=False, highlight=False, soft_wrap=True)


class _Row:
    """What the table knows of one process."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.state = Supervision()
        self.report: ReplicaReport | None = None
        self._since = time.monotonic()
        self._spinner = Spinner("dots")

    def change(self, state: Supervision) -> None:
        if state.phase in _WITH_PROCESS:
            self._since = time.monotonic()
        if state.phase is not ReplicaPhase.READY:
            self.report = None
        self.state = state

    def cells(self) -> tuple[str | Text | Spinner, ...]:
        words = state_in_words(self.state, time.monotonic() - self._since)
        shown: Text | Spinner = Text(words, style=_STYLES[self.state.phase])
        if self.state.phase in _MOVING:
            self._spinner.update(text=shown)
            shown = self._spinner
        if self.report is None:
            return (self.member.name, self.member.engine, shown, "", "", "")
        return (
            self.member.name,
            self.member.engine,
            shown,
            str(self.report.running),
            str(self.report.queued),
            mebibytes(self.report.resident_bytes),
        )


class LiveDisplay:
    """A table that follows the run; crashes scroll by above it."""

    wants_reports = True

    def __init__(self, console: Console, title: str, model: ModelName) -> None:
        self._console = console
        self._title = title
        self._model = model
        self._rows: dict[str, _Row] = {}
        self._site: Site | None = None
        self._stopping = False
        self._live = Live(self, console=console, refresh_per_second=_REFRESHES_PER_SECOND)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table as it is now, and what to do next."""
        table = Table(title=self._title, title_justify="left", expand=False)
        for heading in ("replica", "engine", "state"):
            table.add_column(heading)
        for heading in ("running", "queued", "memory"):
            table.add_column(heading, justify="right")
        for row in tuple(self._rows.values()):
            table.add_row(*row.cells())
        yield Group(table, self._advice())

    def laid_out(self, members: tuple[Member, ...]) -> None:
        """Makes a row for each process."""
        self._rows = {member.name: _Row(member) for member in members}

    def changed(self, member: Member, state: Supervision, tail: tuple[str, ...]) -> None:
        """Updates a row; a crash also leaves a panel with the end of the log."""
        self._rows[member.name].change(state)
        if tail:
            lines = "\n".join(escape(log_line_in_words(line)) for line in tail)
            self._console.print(
                Panel(
                    lines,
                    title=f"{escape(member.name)}: {exit_in_words(state.last_exit)}",
                    subtitle=escape(str(member.command.log)),
                    border_style=_STYLES[state.phase],
                )
            )

    def reported(self, member: Member, report: ReplicaReport) -> None:
        """Updates a row's requests and memory."""
        self._rows[member.name].report = report

    def ready(self, site: Site) -> None:
        """From now on the table says where to ask, and how."""
        self._site = site

    def stopping(self) -> None:
        """From now on the table says that the end has begun."""
        self._stopping = True

    def _advice(self) -> Text:
        if self._stopping:
            return Text("finishing requests; Ctrl-C again ends everything at once", style="magenta")
        if self._site is None:
            return Text("starting; Ctrl-C stops", style="cyan")
        return Text.assemble(
            ("serving at ", "green"),
            (f"{self._site.url}/v1", "bold green"),
            ("; Ctrl-C drains and stops\n", "green"),
            (curl_example(self._site, self._model), "dim"),
        )


Display = LiveDisplay | PlainDisplay


def display_for(console: Console, title: str, model: ModelName) -> Display:
    """The display that suits where the output goes."""
    if console.is_terminal:
        return LiveDisplay(console, title, model)
    return PlainDisplay(console, model)
