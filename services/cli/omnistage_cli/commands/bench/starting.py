"""What every benchmark's command does before it measures: see that it can, and say what it is doing."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from omnistage_common.errors import MissingDependency, SetupError

__all__ = ["check_extra", "check_here", "told_on"]


def check_extra(*packages: str) -> None:
    """Makes sure that what a benchmark measures with is installed.

    Raises:
        MissingDependency: Something is not.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise MissingDependency(
            f"{' and '.join(missing)} cannot be imported, with which benchmarks measure. Install"
            " them: pip install 'omnistage[bench]'"
        )


def check_here(file: Path, default: Path) -> None:
    """Makes sure that a benchmark of a pipeline can run.

    Args:
        file: Of the pipeline.
        default: The file where none was named; it is in the repository.

    Raises:
        MissingDependency: The extra `bench` is not installed.
        SetupError: The default file is not here.
    """
    check_extra("aiohttp", "psutil")
    if not file.exists() and file == default:
        raise SetupError(
            f"{file} is not here: run this in a clone of the repository, or name a pipeline file",
            field="FILE",
        )


def told_on(console: Console) -> Callable[[str], None]:
    """Tells on a console what a benchmark is doing, a line for each step."""
    return lambda step: console.print(f"bench: {step}", markup=False, highlight=False)
