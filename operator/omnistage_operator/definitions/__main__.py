"""`python -m omnistage_operator.definitions --write FOLDER`, or `--check FOLDER`."""

import argparse
import sys
from pathlib import Path

from omnistage_operator.definitions.writing import differing, write

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Writes the definitions, or says which files differ; the status of the process."""
    parser = argparse.ArgumentParser(
        prog="python -m omnistage_operator.definitions",
        description="The definitions of the kinds of Omnistage, from their models.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", metavar="FOLDER", type=Path, help="bring the files in step")
    what.add_argument("--check", metavar="FOLDER", type=Path, help="fail when a file differs")
    chosen = parser.parse_args(arguments)
    if chosen.write is not None:
        write(chosen.write)
        return 0
    wrong = differing(chosen.check)
    for name in wrong:
        sys.stderr.write(f"{chosen.check / name}: is not as the models say; run with --write\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
