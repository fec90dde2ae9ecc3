"""What is wrong with a resource, and where: file, line, field, value and remedy.

Checks collect problems instead of stopping at the first, so that a person mends a file in one go.
A `Place` is a position in something that a person wrote; it turns a path of keys and indices into
the field as that person would name it (`spec.stages[thinker].replicas`) and finds its line.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from omnistage_common.errors import InvalidPipeline, truncated

__all__ = [
    "FieldPath",
    "Place",
    "Problem",
    "ResourceProblems",
    "Severity",
    "Source",
    "closest",
    "raise_errors",
    "shown",
]

FieldPath = tuple[str | int, ...]
"""Keys and list indices from the root of a document to a value."""


class Severity(Enum):
    """Whether something can run in spite of a problem."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing that is wrong."""

    file: str
    """Where it was written; empty for the command line."""
    line: int
    """Line within the file, from 1; 0 where there are no lines."""
    field: str
    """Path of the field, as its writer would name it; empty for the document as a whole."""
    message: str
    """What is wrong, with the value."""
    remedy: str
    """What to do; empty when the message says it."""
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        parts = [part for part in (where, self.field) if part]
        remedy = f" ({self.remedy})" if self.remedy else ""
        return ": ".join([*parts, f"{self.message}{remedy}"])


class ResourceProblems(InvalidPipeline):
    """Resources cannot be resolved.

    Attributes:
        problems: All that is wrong, at least one; ordered by file and line.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        ordered = tuple(sorted(problems, key=lambda each: (each.file, each.line)))
        super().__init__("\n".join(map(str, ordered)), field=ordered[0].field)
        self.problems: Final = ordered


def raise_errors(problems: Iterable[Problem]) -> None:
    """Raises what is an error among the problems, and lets warnings pass.

    Raises:
        ResourceProblems: With every error.
    """
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    if errors:
        raise ResourceProblems(errors)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Something a person wrote, in which a path can be found again."""

    file: str
    """Path as it was given, or what stands for it."""
    data: object = None
    """The document as JSON values; list items with a `name` are called by it."""
    lines: Mapping[FieldPath, int] = field(default_factory=dict)
    """Line of each value, of its key where it has one."""
    command_line: bool = False
    """Whether it was written as `--set` arguments."""

    def line_of(self, path: FieldPath) -> int:
        """Line of a value, or of the nearest one around it that was written; 0 without lines."""
        for length in range(len(path), -1, -1):
            line = self.lines.get(path[:length])
            if line is not None:
                return line
        return 0

    def field_of(self, path: FieldPath) -> str:
        """The path as its writer would name it."""
        text = ""
        node = self.data
        for part in path:
            node = _child(node, part)
            if isinstance(part, str):
                text += f".{part}" if text else part
            elif self.command_line:
                text += f".{_item_name(node, part)}"
            else:
                text += f"[{_item_name(node, part)}]"
        return f"--set {text}" if self.command_line else text


def _child(node: object, part: str | int) -> object:
    if isinstance(part, int):
        return node[part] if isinstance(node, list) and part < len(node) else None
    return node.get(part) if isinstance(node, dict) else None


def _item_name(node: object, index: int) -> str:
    name = node.get("name") if isinstance(node, dict) else None
    return name if isinstance(name, str) and name else str(index)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A position in a source."""

    source: Source
    path: FieldPath = ()

    def at(self, *parts: str | int) -> "Place":
        """A position below this one."""
        return Place(source=self.source, path=(*self.path, *parts))

    def problem(
        self, message: str, remedy: str = "", *, severity: Severity = Severity.ERROR
    ) -> Problem:
        """A problem with what stands here."""
        return Problem(
            file=self.source.file,
            line=self.source.line_of(self.path),
            field=self.source.field_of(self.path),
            message=message,
            remedy=remedy,
            severity=severity,
        )


def shown(value: object) -> str:
    """A value in a message: as YAML would write it, in backquotes, shortened."""
    if value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    else:
        text = truncated(str(value))
    return f"`{text}`"


def closest(word: str, known: Iterable[str], *, what: str) -> str:
    """The remedy for a name that does not exist: the nearest one, or all there are."""
    names = sorted(set(known))
    if not names:
        return f"there are no {what}"
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"{what}: {', '.join(names)}"
