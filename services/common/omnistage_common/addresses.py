"""Network addresses as values: `HOST:PORT`, parsed once and printed the same way."""

import argparse
import re
from dataclasses import dataclass
from socket import AF_INET, AF_INET6, SOCK_DGRAM, socket
from typing import Final

__all__ = ["Address", "address_argument", "parse_address", "reachable"]

_LAST_PORT: Final = 65535
_WILDCARDS: Final = {
    "0.0.0.0": (AF_INET, "192.0.2.1", "127.0.0.1"),  # noqa: S104 - compared with, not bound to
    "::": (AF_INET6, "2001:db8::1", "::1"),
}
"""Wildcard -> its family, an address of documentation that no host has, and the loopback address."""
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


def reachable(listening: Address) -> Address:
    """The address by which other hosts reach a process that listens there.

    A wildcard stands for every address of this host; the one on the way out is taken, or loopback
    where there is no way out. Nothing is sent.
    """
    if listening.host not in _WILDCARDS:
        return listening
    family, elsewhere, loopback = _WILDCARDS[listening.host]
    with socket(family, SOCK_DGRAM) as probe:
        try:
            probe.connect((elsewhere, 9))
            own = str(probe.getsockname()[0])
        except OSError:
            own = loopback
    return Address(host=own, port=listening.port)
