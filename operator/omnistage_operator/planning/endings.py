"""How the process of a replica ended, told from what the kubelet kept of it.

A stage says why it ends as its last line of log, a JSON object, and the kubelet keeps the end of a
failed container's log as its termination message. The exit status says which kind of end it was; see
`omnistage_stage`.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from omnistage_common.errors import InvalidWeights, MissingDependency, truncated
from omnistage_common.pipeline.resources.status import StageReason
from omnistage_operator.planning.decisions import Json

__all__ = ["Ending", "ending"]

_FAILED: Final = 1
"""The engine was beyond use, or an error that nobody expected."""
_NOTHING_STARTED: Final = 3
_SETUP_REASONS: Final = {
    InvalidWeights.code: StageReason.WEIGHTS_INVALID,
    MissingDependency.code: StageReason.MISSING_DEPENDENCY,
}
"""What a stage gives as its reason -> ours; every other one is an argument."""


class Ending(Struct, frozen=True, kw_only=True):
    """Why a process is no more."""

    reason: StageReason
    message: str


def ending(terminated: Json) -> Ending:
    """What a container's `terminated` state tells."""
    status, text = terminated.get("exitCode", 0), terminated.get("message", "")
    said = _last_words(text) if status in {_FAILED, _NOTHING_STARTED} else {}
    words = _sentence(said) or truncated(_last_line(text))
    if terminated.get("reason") == "OOMKilled":
        return Ending(
            reason=StageReason.OOM_KILLED, message="used more memory than its limit and was ended"
        )
    if status == _NOTHING_STARTED:
        reason = _SETUP_REASONS.get(said.get("reason", ""), StageReason.ENGINE_ARGS_REJECTED)
        return Ending(reason=reason, message=words or "refused its settings without a word")
    return Ending(reason=StageReason.CRASH_LOOP, message=_crash(terminated, words))


def _crash(terminated: Json, words: str) -> str:
    status, signal = terminated.get("exitCode", 0), terminated.get("signal")
    how = f"by signal {signal}" if signal else f"with exit status {status}"
    why = terminated.get("reason", "")
    named = f" ({why})" if why not in {"", "Error", "Completed"} else ""
    return f"ended {how}{named}{f': {words}' if words else ''}"


def _sentence(said: dict[str, Any]) -> str:
    """The error that a stage gave, with the field at fault unless the error itself says it."""
    error, field = truncated(str(said.get("error", ""))), str(said.get("field", ""))
    return f"{field}: {error}" if field and field not in error else error


def _last_words(text: str) -> dict[str, Any]:
    """The last line of log that gives an error; empty when there is none."""
    for line in _lines_from_the_end(text):
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict) and "error" in said:
            return said
    return {}


def _last_line(text: str) -> str:
    return next(_lines_from_the_end(text), "")


def _lines_from_the_end(text: str) -> Iterator[str]:
    return (line.strip() for line in reversed(text.splitlines()) if line.strip())
