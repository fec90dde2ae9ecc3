"""Sizes as people write them: `4KiB`, `64 MiB`, a number of bytes."""

import re
from typing import Final

import typer

__all__ = ["parse_size", "size_in_words"]

_UNITS: Final = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_FORM: Final = re.compile(r"([0-9]{1,12}) ?(B|KiB|MiB|GiB)?")


def parse_size(text: str) -> int:
    """The bytes that a text names.

    Raises:
        typer.BadParameter: It names none.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a size, e.g. 4KiB, 16MiB or 65536")
    return int(found[1]) * _UNITS[found[2] or ""]


def size_in_words(size: int) -> str:
    """The same the other way round, e.g. `4 KiB`."""
    unit = next(
        (
            unit
            for unit in ("GiB", "MiB", "KiB")
            if size >= _UNITS[unit] and not size % _UNITS[unit]
        ),
        "B",
    )
    return f"{size // _UNITS[unit]} {unit}"
