"""Network addresses as values: `HOST:PORT`, parsed once and printed the same way."""

import argparse
import re
from dataclasses import dataclass
from typing import Final

__all__ = ["Address", "address_argument", "parse_address"]

_LAST_PORT: Final = 65535
_FORM: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+)):([0-9]{1,5})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """The address that `HOST:PORT` or `[IPV6]:PORT` names.

    Raises:
        ValueError: The text has another form, or the port is not in 0..65535.
    """
    found = _FORM.fullmatch(text)
    if found is None or int(found[3]) > _LAST_PORT:
        raise ValueError(f"{text!r} is not HOST:PORT, e.g. 127.0.0.1:8000 or [::1]:8000")
    return Address(host=found[1] or found[2], port=int(found[3]))


def address_argument(text: str) -> Address:
    """`parse_address` as a `type` of argparse, which shows what is wrong.

    Raises:
        argparse.ArgumentTypeError: As `parse_address` raises ValueError.
    """
    try:
        return parse_address(text)
    except ValueError as malformed:
        raise argparse.ArgumentTypeError(str(malformed)) from malformed
