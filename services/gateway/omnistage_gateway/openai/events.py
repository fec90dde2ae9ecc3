"""Server-sent events as bytes, for every stream; and text that no client takes for several lines."""

from typing import Any, Final

import msgspec

from omnistage_common.errors import OmnistageError
from omnistage_gateway.openai.errors import error_body

__all__ = ["error_event", "named_event", "one_line"]

_encode: Final = msgspec.json.Encoder().encode


def error_event(error: OmnistageError) -> bytes:
    """The event that ends a stream that failed; the official client raises it."""
    return b"data: " + one_line(error_body(error)) + b"\n\n"


def named_event(name: str, body: Any) -> bytes:
    """An event with a name of its own, which its body has as `type` as well."""
    return b"event: " + name.encode() + b"\ndata: " + one_line(_encode(body)) + b"\n\n"


def one_line(text: bytes) -> bytes:
    """JSON without the characters that some clients take for the end of a line.

    Several HTTP libraries split event streams at every line boundary of Unicode, not only at the
    two that server-sent events have.
    """
    if text.isascii():
        return text
    return (
        text.replace(b"\xc2\x85", b"\\u0085")
        .replace(b"\xe2\x80\xa8", b"\\u2028")
        .replace(b"\xe2\x80\xa9", b"\\u2029")
    )
