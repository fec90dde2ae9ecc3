"""Durations and byte quantities, as a cluster writes them, turned into numbers.

The text has passed its pattern in `omnistage_common.pipeline.resources.values` before it comes here.
"""

import re
from typing import Final

__all__ = ["bytes_of", "duration_of", "seconds_of"]

_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNIT_BYTES: Final = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_DURATION_PART: Final = re.compile(r"(\d+)(ms|s|m|h)")
_QUANTITY: Final = re.compile(r"(\d+)([A-Za-z]*)")


def seconds_of(duration: str) -> float:
    """Seconds of a duration such as `1m30s` or `500ms`."""
    return sum(
        int(number) * _UNIT_SECONDS[unit] for number, unit in _DURATION_PART.findall(duration)
    )


def duration_of(seconds: float) -> str:
    """The duration of that many seconds, to a millisecond: what `seconds_of` reads."""
    milliseconds = round(seconds * 1000)
    if milliseconds % 1000:
        return f"{milliseconds // 1000}s{milliseconds % 1000}ms"
    return f"{milliseconds // 1000}s"


def bytes_of(quantity: str) -> int:
    """Bytes of a quantity such as `64Mi`.

    Raises:
        ValueError: The text is no byte quantity.
    """
    match = _QUANTITY.fullmatch(quantity)
    if match is None or match[2] not in _UNIT_BYTES:
        raise ValueError(f"{quantity!r} is not a byte quantity such as 64Mi")
    return int(match[1]) * _UNIT_BYTES[match[2]]
