"""A stage process as it is, but for two engines more: those of the hand-off.

`python -m omnistage_cli.bench.transfer.stage` takes the arguments of `python -m omnistage_stage`. The
engines are registered by an entry point like anybody's, of a distribution that exists in this process
only: nobody who lists the engines of an installation shall find them.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType
from typing import Final

from omnistage_cli.bench.transfer.engines import ENGINES
from omnistage_stage.__main__ import main
from omnistage_stage.engines.protocol import ENTRY_POINT_GROUP

_FILES: Final = {
    "METADATA": "Metadata-Version: 2.1\nName: omnistage-bench-engines\nVersion: 1\n",
    "entry_points.txt": "\n".join(
        (
            f"[{ENTRY_POINT_GROUP}]",
            *(f"{name} = {kind.__module__}:{kind.__name__}" for name, kind in ENGINES.items()),
        )
    ),
}


class _Engines(Distribution):
    """The two engines, as if they were installed."""

    def read_text(self, filename: str) -> str | None:
        """A file of the distribution; None for one that it does not have."""
        return _FILES.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        """Where a file would be: beside this one."""
        return Path(__file__).parent / path


class _Finder(DistributionFinder):
    """Finds that distribution, and no modules."""

    def find_spec(
        self,
        fullname: str,  # noqa: ARG002
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Nothing: modules are found as ever."""
        return None

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        """The engines, unless something else is looked for by its name."""
        if context is None or context.name is None:
            yield _Engines()


if __name__ == "__main__":
    sys.meta_path.append(_Finder())
    main()
