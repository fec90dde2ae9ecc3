"""Names of children: told from their parts, short enough to be DNS labels, never ambiguous."""

import hashlib
from typing import Final

__all__ = ["account_name", "child_name", "gang_name", "service_name", "shortened"]

_LONGEST: Final = 63
"""Characters of a DNS label."""
_LONGEST_GANG: Final = 44
"""Of a LeaderWorkerSet: the numbers of a group and of a pod in it follow, and in a label of each pod the
digest of a StatefulSet, and all of it is to be a DNS label."""
_DIGITS: Final = 8


def child_name(*parts: str) -> str:
    """The parts joined, shortened where that is too long."""
    return shortened("-".join(parts))


def shortened(name: str, longest: int = _LONGEST) -> str:
    """The name, or where it is too long (for a DNS label) its front and a digest of the whole."""
    if len(name) <= longest:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]
    return f"{name[: longest - _DIGITS - 1].rstrip('-')}-{digest}"


def service_name(stage: str, revision: str) -> str:
    """The name of a stage revision's Service, which must begin with a letter; a stage's need not."""
    name = child_name(stage, revision)
    return name if name[0].isalpha() else child_name("stage", name)


def gang_name(stage: str, revision: str) -> str:
    """The name of a stage revision's LeaderWorkerSet.

    Its controller makes a Service of the same name, by which the pods of a gang find each other; it
    differs from that of `service_name`, which gateways use.
    """
    name = f"{stage}-{revision}-gang"
    return shortened(name if name[0].isalpha() else f"stage-{name}", _LONGEST_GANG)


def account_name(stage: str) -> str:
    """The name of a stage's ServiceAccount: never that of another's, such as `default`."""
    return child_name(stage, "stage")
