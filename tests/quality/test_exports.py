"""`__all__` says what a module offers to the others: complete, sorted, and all of it exists."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from quality.repository import ROOT, python_files, syntax

MODULES = {
    ".".join(path.with_suffix("").parts[2:]).removesuffix(".__init__"): path
    for path in python_files("services")
}
"""Dotted name -> file, of every module of ours."""


def exports(module: ast.Module) -> list[str] | None:
    """The names in `__all__`; None when the module does not define it."""
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return list(names)
    return None


def definitions(module: ast.Module) -> set[str]:
    """Names that a module defines at its top level; imported ones do not count."""
    return {name for node in module.body for name in _defined_by(node)}


def _defined_by(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case _:
            return


def imported(module: ast.Module) -> set[str]:
    """Names that a module imports at its top level."""
    return {
        alias.asname or alias.name
        for node in module.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def reading_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions: the order that the linter keeps too."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


EXPORTING = sorted(name for name, path in MODULES.items() if exports(syntax(path)) is not None)


@pytest.mark.parametrize("name", EXPORTING)
def test_exports_exist_and_are_sorted(name: str) -> None:
    module = syntax(MODULES[name])
    listed = exports(module) or []

    assert set(listed) - definitions(module) - imported(module) == set()
    assert listed == sorted(set(listed), key=reading_order)


def imports_of_ours(path: Path) -> Iterator[tuple[str, str]]:
    """Module and name of each `from omnistage_x import name` in a file."""
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("path", list(python_files("services")), ids=str)
def test_what_others_import_is_exported(path: Path) -> None:
    missing = [
        f"{module}.{name}"
        for module, name in imports_of_ours(path)
        if f"{module}.{name}" not in MODULES
        and name not in (exports(syntax(MODULES[module])) or [])
    ]

    assert missing == [], f"{path} imports names that their modules do not export"


def test_every_module_says_why_it_exists() -> None:
    silent = [
        path
        for path in python_files()
        if (ROOT / path).stat().st_size and not ast.get_docstring(syntax(path))
    ]

    assert silent == []
