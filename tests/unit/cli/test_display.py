"""What a run shows, on a terminal and elsewhere."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from omnistage_cli.runtime.display import Display, LiveDisplay, PlainDisplay, display_for
from omnistage_cli.runtime.launching import GATEWAY, Member, Site
from omnistage_cli.runtime.processes import Command
from omnistage_cli.runtime.replica_client import ReplicaReport
from omnistage_cli.runtime.supervision import ReplicaPhase, Supervision
from omnistage_common.addresses import Address
from omnistage_common.ids import ModelName, StageName

SITE = Site(listen=Address(host="127.0.0.1", port=8000))
MODEL = ModelName("omni")
READY = Supervision(phase=ReplicaPhase.READY, has_served=True)
CRASHED = Supervision(phase=ReplicaPhase.BACKING_OFF, last_exit=-9, delay=0.5, crashes=1)
HOPELESS = Supervision(phase=ReplicaPhase.GIVEN_UP, last_exit=1, crashes=5)


def member(name: str, stage: str | None = None) -> Member:
    """A process that is never started."""
    return Member(
        name=name,
        stage=None if stage is None else StageName(stage),
        engine="vllm" if stage else "",
        address="127.0.0.1:1",
        command=Command(arguments=("x",), environment={}, log=Path("/state/logs") / f"{name}.log"),
        grace=1.0,
    )


THINKER = member("thinker-0", "thinker")
MEMBERS = (THINKER, member(GATEWAY))


class Screen:
    """A console whose text can be read."""

    def __init__(self, *, terminal: bool) -> None:
        self._text = io.StringIO()
        self.console = Console(
            file=self._text, force_terminal=terminal, width=160, height=50, color_system=None
        )

    @property
    def text(self) -> str:
        """All that was written so far."""
        return self._text.getvalue()


def a_whole_run(display: Display) -> None:
    """Everything that a display can be told."""
    display.laid_out(MEMBERS)
    display.changed(THINKER, Supervision(), ())
    display.changed(THINKER, READY, ())
    display.ready(SITE)
    display.reported(THINKER, ReplicaReport(running=3, queued=4, resident_bytes=700 * 2**20))


@pytest.mark.parametrize(("terminal", "kind"), [(True, LiveDisplay), (False, PlainDisplay)])
def test_a_terminal_gets_a_table_and_a_pipe_gets_lines(terminal: bool, kind: type[Display]) -> None:  # noqa: FBT001
    screen = Screen(terminal=terminal)

    assert isinstance(display_for(screen.console, "title", MODEL), kind)


def test_lines_tell_the_run_from_start_to_end() -> None:
    screen = Screen(terminal=False)

    with PlainDisplay(screen.console, MODEL) as display:
        a_whole_run(display)
        display.stopping()

    lines = screen.text.splitlines()
    assert lines[0] == "starting thinker-0, gateway"
    assert lines[1] == "thinker-0: starting"
    assert lines[2].startswith("thinker-0: ready after 0.")
    assert lines[3] == "ready: http://127.0.0.1:8000/v1"
    assert lines[4].startswith("try: curl http://127.0.0.1:8000/v1/chat/completions -H ")
    assert lines[5:] == ["stopping: finishing requests"]


def test_lines_of_a_crash_hold_the_end_of_the_log_and_its_path() -> None:
    screen = Screen(terminal=False)

    PlainDisplay(screen.console, MODEL).changed(
        THINKER, CRASHED, ('{"event": "no [memory]", "level": "error"}',)
    )

    assert screen.text.splitlines() == [
        "thinker-0: killed by SIGKILL; restart 1 in 0.5 s",
        "  thinker-0 | error no [memory]",
        "  thinker-0 | the whole log: /state/logs/thinker-0.log",
    ]


def test_the_table_shows_replicas_their_requests_and_where_to_ask() -> None:
    screen = Screen(terminal=True)

    with LiveDisplay(screen.console, "omni", MODEL) as display:
        a_whole_run(display)

    for words in ("thinker-0", "vllm", "ready", "3", "4", "700 MiB", "gateway"):
        assert words in screen.text
    assert "serving at http://127.0.0.1:8000/v1" in screen.text
    assert "curl http://127.0.0.1:8000/v1/chat/completions" in screen.text


def test_the_table_shows_how_long_a_stage_has_been_loading() -> None:
    screen = Screen(terminal=True)

    with LiveDisplay(screen.console, "omni", MODEL) as display:
        display.laid_out(MEMBERS)
        display.changed(THINKER, Supervision(phase=ReplicaPhase.LOADING), ())

    assert "loading 0 s" in screen.text
    assert "starting; Ctrl-C stops" in screen.text


@pytest.mark.parametrize(
    ("state", "title"),
    [(CRASHED, "thinker-0: killed by SIGKILL"), (HOPELESS, "thinker-0: exited with code 1")],
)
def test_a_crash_leaves_a_panel_with_the_end_of_the_log(state: Supervision, title: str) -> None:
    screen = Screen(terminal=True)

    with LiveDisplay(screen.console, "omni", MODEL) as display:
        display.laid_out(MEMBERS)
        display.changed(THINKER, state, ("out of [bold]memory[/bold]",))

    assert title in screen.text
    assert "out of [bold]memory[/bold]" in screen.text
    assert "/state/logs/thinker-0.log" in screen.text


def test_the_requests_of_a_replica_that_is_gone_are_not_shown() -> None:
    screen = Screen(terminal=True)
    display = LiveDisplay(screen.console, "omni", MODEL)
    a_whole_run(display)

    display.changed(THINKER, CRASHED, ())
    screen.console.print(display)

    assert "700 MiB" not in screen.text


def test_the_table_says_that_the_end_has_begun() -> None:
    screen = Screen(terminal=True)
    display = LiveDisplay(screen.console, "omni", MODEL)
    a_whole_run(display)

    display.stopping()
    screen.console.print(display)

    assert "Ctrl-C again" in screen.text
