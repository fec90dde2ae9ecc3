"""How problems with resources look on a terminal: one line each, colour only where it can be seen."""

from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.text import Text

from omnistage_common.pipeline.problems import Problem, Severity

__all__ = ["counted", "print_problems"]

_COLOURS: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow"}


def print_problems(console: Console, problems: Iterable[Problem]) -> None:
    """Prints `file:line: field: message (remedy)` for each; warnings say that they are."""
    for problem in problems:
        note = "warning: " if problem.severity is Severity.WARNING else ""
        line = Text.assemble((note, _COLOURS[Severity.WARNING]), str(problem))
        where = f"{problem.field}: "
        if problem.field and where in line.plain:
            start = line.plain.index(where)
            line.stylize(_COLOURS[problem.severity], start, start + len(problem.field))
        console.print(line, soft_wrap=True)


def counted(number: int, noun: str) -> str:
    """A number with its noun, e.g. `2 errors`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
