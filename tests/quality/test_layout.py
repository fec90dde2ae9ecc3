"""The shape of the tree: what the top level holds, what must not shadow or be patched."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from quality.repository import ROOT, files, python_files, syntax, tracked_files

TOP_LEVEL: Final = {
    # The product.
    "services",
    "protos",
    "charts",
    "operator",
    "deploy",
    "tests",
    "docs",
    "Dockerfile.stage",
    "Dockerfile.gateway",
    "pyproject.toml",
    # The usual files of a project.
    ".ci",
    ".dockerignore",
    ".gitattributes",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "mkdocs.yml",
}

BROAD: Final = {"Exception", "BaseException"}
BOUNDARIES: Final[dict[str, str]] = {
    "operator/omnistage_operator/control/controlling.py": "a planner's bug costs one object",
    "services/gateway/omnistage_gateway/endpoints/exchange.py": "a bug costs one request, as a 500",
    "services/stage/omnistage_stage/engines/registry.py": "an engine is anybody's code",
    "services/stage/omnistage_stage/service/replica.py": "an engine is anybody's code",
}
"""File -> why it may catch everything. A boundary re-raises, converts or ends its process."""

PATH_SURGERY: Final = re.compile(r"\bsys\.path\b|\bPYTHONPATH\b|\baddsitedir\b")


def test_the_top_level_holds_only_what_belongs_there() -> None:
    assert {path.parts[0] for path in files()} - TOP_LEVEL == set()


def test_no_top_level_folder_is_a_package() -> None:
    packages = [path for path in ROOT.glob("*/__init__.py") if not path.parent.name.startswith(".")]

    assert packages == []


def test_the_standard_operator_module_is_not_shadowed() -> None:
    script = "import operator; print(operator.itemgetter(1)('ab'))"

    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True
    )

    assert done.stdout == "b\n"


def test_every_component_folder_holds_one_package() -> None:
    parents = {path.parent for path in files() if path.name == "py.typed"}

    assert sorted(str(parent) for parent in parents if parent.parts[0] == "services") == [
        f"services/{name}/omnistage_{name}" for name in ("cli", "common", "gateway", "stage")
    ]


def test_tests_are_not_packages() -> None:
    assert [path for path in python_files("tests") if path.name == "__init__.py"] == []


def test_nothing_operates_on_the_import_path() -> None:
    hits = [
        f"{path}:{number}"
        for path in python_files()
        if path != Path(__file__).relative_to(ROOT)
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1)
        if PATH_SURGERY.search(line)
    ]

    assert hits == []


def broad_handlers(module: ast.Module) -> list[int]:
    """Lines that catch everything, by a clause or by `suppress`."""
    caught: list[tuple[int, ast.expr | None]] = []
    for node in ast.walk(module):
        if isinstance(node, ast.ExceptHandler):
            caught.append((node.lineno, node.type))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            caught += [(node.lineno, argument) for argument in node.args]
    return [line for line, kind in caught if kind is None or BROAD & names(kind)]


def names(expression: ast.expr) -> set[str]:
    """The names within an expression."""
    return {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}


def test_only_named_boundaries_catch_everything() -> None:
    hits = {str(path): broad_handlers(syntax(path)) for path in python_files()}

    assert {path: lines for path, lines in hits.items() if lines and path not in BOUNDARIES} == {}


def test_every_named_boundary_catches_something() -> None:
    assert [path for path in BOUNDARIES if not broad_handlers(syntax(Path(path)))] == []


def test_no_build_output_is_tracked() -> None:
    outputs = re.compile(r"(^|/)(__pycache__|site|dist|build|\.venv|[^/]+\.egg-info)/|\.(pyc|so)$")

    assert [path for path in tracked_files() if outputs.search(path.as_posix())] == []
