"""Kubernetes quantities as numbers, so that `1000m` and `1` are the same amount.

The API server rewrites quantities in the kinds that it knows; whoever compares what was asked for
with what is there compares amounts.
"""

import re
from decimal import Decimal
from typing import Any, Final

__all__ = ["amount_of", "same_quantity"]

_QUANTITY: Final = re.compile(
    r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)"
)

_SUFFIXES: Final = {
    "n": Decimal(10) ** -9,
    "u": Decimal(10) ** -6,
    "m": Decimal(10) ** -3,
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}


def amount_of(quantity: Any) -> Decimal | None:
    """The amount that a quantity stands for, None when it is no quantity."""
    if isinstance(quantity, bool) or not isinstance(quantity, str | int | float):
        return None
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        return None
    number, exponent, suffix = match.groups()
    return Decimal(number + (exponent or "")) * _SUFFIXES.get(suffix or "", Decimal(1))


def same_quantity(one: Any, other: Any) -> bool:
    """Whether two quantities are the same amount; what is no quantity is never the same."""
    amount = amount_of(one)
    return amount is not None and amount == amount_of(other)
