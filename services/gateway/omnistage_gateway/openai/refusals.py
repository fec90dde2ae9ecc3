"""Reads bodies strictly, and says why one was not taken: which field, what was expected, what stood there.

Each endpoint describes its body in `BodyRules`; what is done with them is the same for all. A body is
decoded once when it is right. Only after that has failed is it decoded a second time, without types:
either nothing is wrong (a field that is not supported holds the value that means "off"), or the one
error is raised that says what to change. A field that would change the answer is never ignored.
"""

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from omnistage_common.errors import InvalidRequest

__all__ = ["BodyReader", "BodyRules", "Unsupported", "one_of", "shown"]

B = TypeVar("B", bound=Struct)

_MAX_SHOWN: Final = 60
"""Characters of a client's value that a message repeats."""


class Unsupported(Struct, frozen=True, kw_only=True):
    """A known field that is not supported."""

    remedy: str
    off: tuple[Any, ...] = ()
    """Values, besides null, that ask for nothing and are therefore accepted."""


class BodyRules(Struct, frozen=True, kw_only=True):
    """What there is to say about a body besides its types.

    Paths are those of fields, with `[]` for every index: `messages[].content[].type`.
    """

    expected: Mapping[str, str]
    """Path -> what belongs there, in prose; the empty path is the body."""
    structs: Mapping[str, type[Struct]] = {}
    """Path of an object -> its type, to find misspelt fields in."""
    kinds: Mapping[str, type[Struct]] = {}
    """`type` of an object whose type depends on it -> its type."""
    unsupported: Mapping[str, Unsupported]
    """Fields of the body that clients send and this endpoint does not support."""
    special: Callable[[str, str, Any], InvalidRequest | None] = lambda _path, _pattern, _value: None
    """Path, the same with `[]`, and a value that does not belong there -> the error when there is
    more to say than what was expected."""


class BodyReader(Generic[B]):
    """Reads the bodies of one endpoint."""

    def __init__(self, body: type[B], rules: BodyRules) -> None:
        self._body = body
        self._rules = rules
        self._decode = msgspec.json.Decoder(body).decode

    def read(self, data: bytes) -> B:
        """The body.

        Args:
            data: JSON as the client sent it.

        Raises:
            InvalidRequest: The field at fault is named; `body` when it is not JSON.
        """
        try:
            return self._decode(data)
        except msgspec.ValidationError as error:
            return self._mended(data, error)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _malformed(error) from error

    def _mended(self, data: bytes, error: msgspec.ValidationError) -> B:
        """The body without fields that ask for nothing, if only such stood in the way."""
        try:
            document = msgspec.json.decode(data)
        except msgspec.ValidationError:  # a number that no float holds
            raise self._refusal(error, None) from error
        except (msgspec.DecodeError, RecursionError) as malformed:
            raise _malformed(malformed) from malformed
        if isinstance(document, dict):
            document = self._without_unsupported(document)
        try:
            return msgspec.convert(document, self._body)
        except msgspec.ValidationError as precise:
            raise self._refusal(precise, document) from precise

    def _without_unsupported(self, document: dict[str, Any]) -> dict[str, Any]:
        unsupported = self._rules.unsupported
        for name in document.keys() & unsupported.keys():
            rule = unsupported[name]
            value = document[name]
            if value is not None and not any(_same(value, off) for off in rule.off):
                raise InvalidRequest(f"`{name}` is not supported: {rule.remedy}", field=name)
        return {name: value for name, value in document.items() if name not in unsupported}

    def _refusal(self, error: msgspec.ValidationError, document: Any) -> InvalidRequest:
        text = str(error)
        at = _PATH.search(text)
        path = at.group(1).removeprefix(".").removesuffix("[...]") if at else ""
        summary = text[: at.start()] if at else text
        if missing := _MISSING.fullmatch(summary):
            return self._missing(_joined(path, missing.group(1)))
        if unknown := _UNKNOWN.fullmatch(summary):
            return self._unknown(path, unknown.group(1), document)
        return self._unexpected(path, summary, document)

    def _missing(self, field: str) -> InvalidRequest:
        expected = self._rules.expected.get(_pattern(field))
        hint = f": give {expected}" if expected else ""
        return InvalidRequest(f"`{field}` is missing{hint}", field=field)

    def _unknown(self, path: str, name: str, document: Any) -> InvalidRequest:
        owner = self._rules.structs.get(_pattern(path)) if path else self._body
        if owner is None:
            part = _value_at(document, path)
            kind = part.get("type", "") if isinstance(part, dict) else ""
            owner = self._rules.kinds.get(kind)
        known = owner.__struct_encode_fields__ if owner else ()
        near = get_close_matches(name[:_MAX_SHOWN], known, n=1)
        hint = f"; did you mean `{near[0]}`?" if near else "; leave it out"
        field = _joined(path, _shortened(name))
        return InvalidRequest(f"unknown field `{field}`{hint}", field=field)

    def _unexpected(self, path: str, summary: str, document: Any) -> InvalidRequest:
        value = _value_at(document, path)
        pattern = _pattern(path)
        particular = self._rules.special(path, pattern, value)
        if particular is not None:
            return particular
        expected = self._rules.expected.get(pattern)
        if expected is None:
            wanted = _WANTED.match(summary)
            words = wanted.group(1).split(" | ") if wanted else ["another value"]
            expected = " or ".join(_WORDS.get(word, word) for word in words)
        return InvalidRequest(
            f"`{path or 'body'}`: expected {expected}, got {shown(value)}", field=path or "body"
        )


_WORDS: Final[Mapping[str, str]] = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "object": "an object",
    "str": "a string",
}
"""What msgspec's names of types are in prose."""

_MISSING: Final = re.compile(r"Object missing required field `(.+?)`")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_PATH: Final = re.compile(r" - at `\$(.*)`\Z", re.DOTALL)
_WANTED: Final = re.compile(r"Expected `([^`]+)`")
_STEP: Final = re.compile(r"\[(\d+)\]|\.?([^.\[\]]+)")


def one_of(values: type[Enum]) -> str:
    """The members of an enum, in prose."""
    return "one of " + ", ".join(member.value for member in values)


def shown(value: Any) -> str:
    """What a client sent, as far as a message repeats it."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return msgspec.json.encode(_shortened(value)).decode()
    return _shortened(msgspec.json.encode(value).decode())


def _malformed(error: Exception) -> InvalidRequest:
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return InvalidRequest(
        f"the body is not valid JSON in UTF-8: {reason[:200]}; send one JSON object", field="body"
    )


def _same(value: Any, off: Any) -> bool:
    return isinstance(value, bool) == isinstance(off, bool) and bool(value == off)


def _pattern(path: str) -> str:
    return re.sub(r"\[\d+\]", "[]", path)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _value_at(document: Any, path: str) -> Any:
    value = document
    for index, name in _STEP.findall(path):
        if index and isinstance(value, list) and int(index) < len(value):
            value = value[int(index)]
        elif name and isinstance(value, dict):
            value = value.get(name)
        else:
            return None
    return value


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"
