"""Nothing grows past what a reader can hold: files, functions, nesting. No exceptions."""

import ast
from collections.abc import Iterator
from typing import Final

import pytest

from quality.repository import ROOT, python_files, syntax

MAX_FILE_LINES: Final = 600
MAX_FUNCTION_LINES: Final = 60
MAX_NESTING: Final = 4

Function = ast.FunctionDef | ast.AsyncFunctionDef
BLOCKS: Final = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.With,
    ast.AsyncWith,
    ast.Try,
    ast.TryStar,
    ast.Match,
)


def functions(module: ast.Module) -> Iterator[Function]:
    """Every function and method of a module, nested ones too."""
    return (node for node in ast.walk(module) if isinstance(node, Function))


def length(function: Function) -> int:
    """Lines from `def` to the last statement, docstring included."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def nesting(node: ast.AST) -> int:
    """How many blocks stand in one another; a function within starts anew, `elif` adds none."""
    return max((_nesting_at(node, child) for child in ast.iter_child_nodes(node)), default=0)


def _nesting_at(parent: ast.AST, child: ast.AST) -> int:
    if isinstance(child, Function | ast.ClassDef | ast.Lambda):
        return 0
    is_elif = isinstance(parent, ast.If) and isinstance(child, ast.If) and parent.orelse == [child]
    return nesting(child) + (isinstance(child, BLOCKS) and not is_elif)


def test_files_are_short() -> None:
    lengths = {
        str(path): len((ROOT / path).read_text(encoding="utf-8").splitlines())
        for path in python_files()
    }

    assert {path: lines for path, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    long = {
        f"{path}:{function.lineno} {function.name}": length(function)
        for path in python_files()
        for function in functions(syntax(path))
        if length(function) > MAX_FUNCTION_LINES
    }

    assert long == {}


def test_functions_are_flat() -> None:
    deep = {
        f"{path}:{function.lineno} {function.name}": nesting(function)
        for path in python_files()
        for function in functions(syntax(path))
        if nesting(function) > MAX_NESTING
    }

    assert deep == {}


@pytest.mark.parametrize(
    ("source", "depth"),
    [
        ("def f():\n    return 1", 0),
        ("def f():\n  if a:\n    b\n  elif c:\n    d\n  else:\n    e", 1),
        ("def f():\n  if a:\n    b\n  else:\n    c\n    if d:\n      e", 2),
        (
            "def f():\n  for a in b:\n    with c:\n      try:\n        d\n      except E:\n        g",
            3,
        ),
        ("async def f():\n  async with a:\n    def g():\n      if b:\n        c", 1),
        ("def f():\n  match a:\n    case 1:\n      while b:\n        c", 2),
    ],
)
def test_nesting_counts_blocks(source: str, depth: int) -> None:
    function = next(functions(ast.parse(source)))

    assert nesting(function) == depth
