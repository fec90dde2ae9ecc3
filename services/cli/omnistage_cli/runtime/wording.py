"""What happens to processes, in words for people. Shared by every display; prints nothing itself."""

import json
import signal
from typing import Final

import msgspec

from omnistage_cli.runtime.launching import Site
from omnistage_cli.runtime.supervision import (
    CANNOT_START,
    SETUP_EXIT_CODE,
    ReplicaPhase,
    Supervision,
)
from omnistage_common.errors import truncated
from omnistage_common.ids import ModelName

__all__ = ["curl_example", "exit_in_words", "log_line_in_words", "mebibytes", "state_in_words"]

_SAID_FIRST: Final = ("level", "event", "timestamp")


def exit_in_words(code: int | None) -> str:
    """How a process ended, e.g. `killed by SIGKILL`."""
    if code is None:
        return "ended"
    if code == SETUP_EXIT_CODE:
        return "its setup is wrong"
    if code == CANNOT_START:
        return "its program cannot be executed"
    if code >= 0:
        return f"exited with code {code}"
    known = {int(number): number.name for number in signal.Signals}
    return f"killed by {known.get(-code, f'signal {-code}')}"


def state_in_words(state: Supervision, seconds: float) -> str:
    """A process's state and how long it has been in it.

    Args:
        state: What is known of it.
        seconds: Since its process was started, or since it crashed.
    """
    match state.phase:
        case ReplicaPhase.STARTING | ReplicaPhase.LOADING:
            again = f" (restart {state.restarts})" if state.restarts else ""
            return f"{state.phase.value} {seconds:.0f} s{again}"
        case ReplicaPhase.READY:
            return f"ready (restarts: {state.restarts})" if state.restarts else "ready"
        case ReplicaPhase.BACKING_OFF:
            how = exit_in_words(state.last_exit)
            return f"{how}; restart {state.restarts + 1} in {max(state.delay - seconds, 0):.1f} s"
        case ReplicaPhase.GIVEN_UP:
            return f"given up: {exit_in_words(state.last_exit)}"
        case _:
            return str(state.phase.value)


def log_line_in_words(line: str) -> str:
    """A line of a log; one of ours (JSON) without its punctuation."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, object])
    except msgspec.DecodeError:
        return truncated(line)
    rest = " ".join(f"{key}={value}" for key, value in fields.items() if key not in _SAID_FIRST)
    said = " ".join(str(fields[key]) for key in ("level", "event") if key in fields)
    return truncated(f"{said} {rest}".strip())


def mebibytes(count: int) -> str:
    """Bytes as people read memory, e.g. `812 MiB`."""
    return f"{count / 2**20:.0f} MiB"


def curl_example(site: Site, model: ModelName) -> str:
    """A command that asks the pipeline something."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }
    return (
        f"curl {site.url}/v1/chat/completions -H 'Content-Type: application/json' "
        f"-d '{json.dumps(body)}'"
    )
