"""What the documentation tells a reader to type or to open is there."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from quality.repository import ROOT, files

PAGES = [path for path in files() if path.suffix == ".md" and path.name != "CHANGELOG.md"]
FENCE = re.compile(r"^ *```(?:bash|sh|console)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
PATH = re.compile(r"`((?:services|protos|deploy|tests|docs)/[\w./-]*[\w/]|[\w./-]+\.(?:py|proto))`")


def text_of(page: Path) -> str:
    """The Markdown of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def command_lines(page: Path) -> Iterator[list[str]]:
    """Words of every command in the shell blocks of a page."""
    for block in FENCE.findall(text_of(page)):
        for line in block.replace("\\\n", " ").splitlines():
            words = line.strip().removeprefix("$ ").partition(" # ")[0].split()
            if words:
                yield words


def make_targets() -> Iterator[tuple[Path, str]]:
    """Page and target of every `make` that a reader is told to type."""
    for page in PAGES:
        for words in command_lines(page):
            if words[0] == "make":
                yield from ((page, w) for w in words[1:] if re.fullmatch(r"[a-z-]+", w))


def omnistage_commands() -> Iterator[tuple[Path, str]]:
    """Page and arguments of every `omnistage` that a reader is told to type."""
    for page in PAGES:
        for words in command_lines(page):
            if Path(words[0]).name == "omnistage":
                yield page, " ".join(words[1:])


def subcommand(words: Sequence[str]) -> list[str]:
    """The leading words that choose a command; what follows are its arguments."""
    for position, word in enumerate(words):
        if not re.fullmatch(r"[a-z][a-z-]*", word):
            return list(words[:position])
    return list(words)


@pytest.mark.parametrize(("page", "target"), sorted(set(make_targets())), ids=str)
def test_every_make_target_exists(page: Path, target: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page} says `make {target}`"


@pytest.mark.parametrize("line", sorted({line for _, line in omnistage_commands()}))
def test_every_omnistage_command_and_its_options_exist(line: str) -> None:
    words = line.split()
    program = Path(sys.executable).with_name("omnistage")

    done = subprocess.run(
        [program, *subcommand(words), "--help"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"},
    )

    assert done.returncode == 0, done.stderr
    options = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert {option for option in options if option not in done.stdout} == set()


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    targets = LINK.findall(text_of(page))

    assert [t for t in targets if not (ROOT / page.parent / t).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_file_that_is_named_exists(page: Path) -> None:
    existing = {f"/{path.as_posix()}" for path in files()}

    missing = [
        path
        for path in PATH.findall(text_of(page))
        if not (ROOT / path).exists() and not any(e.endswith(f"/{path}") for e in existing)
    ]

    assert missing == []


def test_the_readme_shows_the_two_commands_first() -> None:
    lines = [" ".join(words) for words in command_lines(Path("README.md"))]

    assert lines[:2] == ["make demo", "make test"]
