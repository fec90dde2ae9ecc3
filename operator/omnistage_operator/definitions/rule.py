"""One CEL rule, as the API server takes it; it knows no model."""

import json
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from msgspec import Struct

__all__ = ["Reason", "Rule", "literal"]


class Reason(Enum):
    """What kind of mistake it is; the API server knows these and no other."""

    INVALID = "FieldValueInvalid"
    FORBIDDEN = "FieldValueForbidden"
    REQUIRED = "FieldValueRequired"


class Rule(Struct, frozen=True, kw_only=True):
    """What must hold of a value, and what to tell who breaks it."""

    rule: str
    """CEL expression over `self`."""
    message: str
    """What is wrong and what to do; it follows the name of the field."""
    expression: str | None = None
    """CEL expression of a message that names what is wrong; `message` stands in where it fails."""
    reason: Reason = Reason.INVALID
    field_path: str | None = None
    """Field below `self` that is to blame, e.g. `.edges`; None for the value itself."""

    def as_json(self) -> dict[str, Any]:
        """The rule as it stands in a definition."""
        entry = {
            "rule": self.rule,
            "message": self.message,
            "messageExpression": self.expression,
            "reason": self.reason.value,
            "fieldPath": self.field_path,
        }
        return {key: value for key, value in entry.items() if value is not None}


def literal(value: Mapping[str, str] | Iterable[str]) -> str:
    """A map or list of text as CEL writes it, in one order whatever the hash seed."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(k)}: {_text(v)}" for k, v in sorted(value.items())) + "}"
    return "[" + ", ".join(_text(each) for each in sorted(value)) + "]"


def _text(value: str) -> str:
    return "'" + json.dumps(value)[1:-1].replace("'", "\\'") + "'"
