"""Names of children: told from their parts, short enough to be DNS labels, never ambiguous."""

import hashlib
from typing import Final

__all__ = ["account_name", "child_name", "service_name", "shortened"]

_LONGEST: Final = 63
"""Characters of a DNS label."""
_DIGITS: Final = 8


def child_name(*parts: str) -> str:
    """The parts joined, shortened where that is too long."""
    return shortened("-".join(parts))


def shortened(name: str) -> str:
    """The name, or where it is too long for a DNS label its front and a digest of the whole."""
    if len(name) <= _LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]
    return f"{name[: _LONGEST - _DIGITS - 1].rstrip('-')}-{digest}"


def service_name(stage: str, revision: str) -> str:
    """The name of a stage revision's Service, which must begin with a letter; a stage's need not."""
    name = child_name(stage, revision)
    return name if name[0].isalpha() else child_name("stage", name)


def account_name(stage: str) -> str:
    """The name of a stage's ServiceAccount: never that of another's, such as `default`."""
    return child_name(stage, "stage")
