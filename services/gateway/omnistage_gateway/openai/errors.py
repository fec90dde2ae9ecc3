"""How an error of ours looks to an OpenAI client: status, headers and body.

The status and the type come from the one table in `omnistage_common.errors`; nothing here decides
what an error means.
"""

import math

import msgspec
from msgspec import Struct

from omnistage_common.errors import OmnistageError, status_of

__all__ = ["ErrorBody", "ErrorDetail", "ErrorResponse", "error_body", "error_response"]


class ErrorResponse(Struct, frozen=True, kw_only=True):
    """A whole HTTP response."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    """Lower-case names, as ASGI wants them."""
    body: bytes


class ErrorDetail(Struct, frozen=True):
    """The inside of OpenAI's error shape."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(Struct, frozen=True):
    """OpenAI's error shape."""

    error: ErrorDetail


def error_body(error: OmnistageError) -> bytes:
    """The JSON body of an error."""
    detail = ErrorDetail(
        error.message, status_of(error).openai_type, error.field or None, error.code
    )
    return msgspec.json.encode(ErrorBody(detail))


def error_response(error: OmnistageError) -> ErrorResponse:
    """The response to a request that failed before anything was sent.

    `Retry-After` stands in it exactly when trying again makes sense, in whole seconds, at least 1.
    """
    body = error_body(error)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after))))
    return ErrorResponse(status=status_of(error).http, headers=tuple(headers), body=body)
