"""YAML text to JSON values, with the line of each.

Scalars are read as a cluster reads them, so that a file means the same in both places: no dates, no
base-60 numbers, `1e-3` is a number. Files are bounded in bytes, depth and size after aliases are
followed, so that no file can exhaust memory. Everything wrong is collected.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import yaml

from omnistage_common.pipeline.problems import FieldPath, Problem, Source, shown

__all__ = ["MAX_FILE_BYTES", "read_documents", "read_value"]

MAX_FILE_BYTES: Final = 1_048_576
"""Bytes of one file; more than a cluster accepts for one object."""

_MAX_DEPTH: Final = 32
_MAX_VALUES: Final = 50_000
_MERGE: Final = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """The parser with the scalars of JSON, and the words for booleans that a cluster knows."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own registry, filled below


for _tag, _pattern, _first in (
    (
        "bool",
        r"^(?:true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF)$",
        "tTfFyYnNoO",
    ),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789"),
    (
        "float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)$",
        "-+.0123456789",
    ),
    ("null", r"^(?:~|null|Null|NULL|)$", "~nN\0"),
    ("merge", r"^<<$", "<"),
):
    for _character in _first:
        _Loader.yaml_implicit_resolvers.setdefault(
            "" if _character == "\0" else _character, []
        ).append((f"tag:yaml.org,2002:{_tag}", re.compile(_pattern)))

_BOOLEANS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
}


class _Entry(NamedTuple):
    key: str
    line: int
    value: yaml.Node


@dataclass(kw_only=True, slots=True)
class _Reader:
    """Turns the nodes of one document into values, and notes lines and problems on the way."""

    file: str
    lines: dict[FieldPath, int] = field(default_factory=dict)
    faults: list[tuple[int, FieldPath, str, str]] = field(default_factory=list)
    values: int = 0

    def read(self, node: yaml.Node, path: FieldPath) -> object:
        self.lines.setdefault(path, node.start_mark.line + 1)
        self.values += 1
        if len(path) > _MAX_DEPTH or self.values > _MAX_VALUES:
            if not any(fault[2].startswith("is too") for fault in self.faults):
                self._fault(
                    node,
                    path[:1],
                    "is too large or too deep",
                    f"at most {_MAX_VALUES} values and {_MAX_DEPTH} levels, aliases followed",
                )
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _fault(self, node: yaml.Node, path: FieldPath, message: str, remedy: str) -> None:
        self.faults.append((node.start_mark.line + 1, path, message, remedy))

    def _mapping(self, node: yaml.MappingNode, path: FieldPath) -> dict[str, object]:
        found: dict[str, object] = {}
        own: dict[str, int] = {}
        for entry in self._entries(node, path):
            if entry.key in own:
                self._fault(
                    entry.value,
                    (*path, entry.key),
                    f"is given twice, first on line {own[entry.key]}",
                    "keep one of them",
                )
                continue
            own[entry.key] = entry.line
            self.lines[*path, entry.key] = entry.line
            found[entry.key] = self.read(entry.value, (*path, entry.key))
        for merged in self._merged(node, path):
            for entry in self._entries(merged, path):
                if entry.key not in found:
                    self.lines[*path, entry.key] = entry.line
                    found[entry.key] = self.read(entry.value, (*path, entry.key))
        return found

    def _entries(self, node: yaml.MappingNode, path: FieldPath) -> Iterator[_Entry]:
        for key, value in node.value:
            if key.tag == _MERGE:
                continue
            if not isinstance(key, yaml.ScalarNode) or not key.tag.endswith(":str"):
                written = key.value if isinstance(key, yaml.ScalarNode) else "a structure"
                self._fault(
                    key, path, f"has the key {shown(written)}, which is not text", "quote it"
                )
                continue
            yield _Entry(key.value, key.start_mark.line + 1, value)

    def _merged(self, node: yaml.MappingNode, path: FieldPath) -> Iterator[yaml.MappingNode]:
        for key, value in node.value:
            if key.tag != _MERGE:
                continue
            sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for source in sources:
                if isinstance(source, yaml.MappingNode):
                    yield source
                else:
                    self._fault(value, path, "merges `<<` something that is no mapping", "name one")

    def _scalar(self, node: yaml.Node, path: FieldPath) -> object:
        kind = node.tag.rpartition(":")[2]
        text: str = node.value
        if kind == "str":
            return text
        if kind == "null":
            return None
        if kind == "bool" and text.lower() in _BOOLEANS:
            return _BOOLEANS[text.lower()]
        if kind == "int" and re.fullmatch(r"[-+]?\d{1,20}", text):
            return int(text)
        if kind == "float":
            return self._float(node, path)
        self._fault(
            node,
            path,
            f"has the value {shown(text)} with the tag {shown(node.tag)}",
            "write plain YAML",
        )
        return None

    def _float(self, node: yaml.Node, path: FieldPath) -> float | None:
        try:
            number = float(node.value)
        except ValueError:
            number = math.nan
        if math.isfinite(number):
            return number
        self._fault(node, path, f"is {shown(node.value)}", "write a finite number")
        return None


def read_documents(text: str, *, file: str) -> tuple[tuple[Source, ...], tuple[Problem, ...]]:
    """The documents of a YAML file, and everything wrong with it as YAML.

    Empty documents are left out. What stands before a syntax error is read.
    """
    sources: list[Source] = []
    problems: list[Problem] = []
    try:
        for node in yaml.compose_all(text, Loader=_Loader):
            source, found = _read_node(node, file)
            problems.extend(found)
            if source.data is not None:
                sources.append(source)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problems.append(
            Problem(
                file=file,
                line=mark.line + 1 if mark else 1,
                field="",
                message=f"is not YAML: {error.problem}",
                remedy=error.context or "",
            )
        )
    except yaml.reader.ReaderError as error:
        problems.append(
            Problem(
                file=file,
                line=text.count("\n", 0, error.position) + 1,
                field="",
                message=f"has the character U+{ord(text[error.position]):04X}, which YAML forbids",
                remedy="remove it",
            )
        )
    except RecursionError:
        problems.append(
            Problem(file=file, line=1, field="", message="is nested too deeply", remedy="")
        )
    return tuple(sources), tuple(problems)


def read_value(text: str, *, file: str) -> tuple[object, tuple[Problem, ...]]:
    """One YAML value, e.g. from a command line, and everything wrong with it."""
    sources, problems = read_documents(text, file=file)
    return (sources[0].data if sources else None), problems


def _read_node(node: yaml.Node, file: str) -> tuple[Source, list[Problem]]:
    reader = _Reader(file=file)
    data = reader.read(node, ())
    source = Source(file=file, data=data, lines=reader.lines)
    problems = [
        Problem(file=file, line=line, field=source.field_of(path), message=message, remedy=remedy)
        for line, path, message, remedy in reader.faults
    ]
    return source, problems
