"""What the hot endpoints need of HTTP, straight on ASGI: bounded bodies, whole answers, streams."""

from collections.abc import Iterable
from typing import Final

from starlette.types import Receive, Scope, Send

from omnistage_common.errors import BodyTooLarge, InvalidRequest, RequestCancelled

__all__ = [
    "CLOSE",
    "EVENT_STREAM",
    "JSON",
    "declared_length",
    "header",
    "read_body",
    "respond",
    "start",
]

CLOSE: Final = (b"connection", b"close")
"""Ends the connection with the answer, so that nothing more of a body is read from it."""
LENGTH_DIGITS: Final = 18
"""Of a declared length; what no file system holds is no length."""
JSON: Final = (b"content-type", b"application/json")
EVENT_STREAM: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

Headers = Iterable[tuple[bytes, bytes]]


def header(scope: Scope, name: bytes) -> bytes | None:
    """The value of the first header of that (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


def declared_length(scope: Scope) -> int | None:
    """Bytes of the body as the head says, None when it does not.

    Raises:
        InvalidRequest: The head says something that is not a length.
    """
    text = header(scope, b"content-length")
    if text is None:
        return None
    if not text.isdigit() or len(text) > LENGTH_DIGITS:
        raise InvalidRequest("Content-Length is not a number of bytes", field="Content-Length")
    return int(text)


async def read_body(receive: Receive, limit: int) -> bytes:
    """The whole body.

    Raises:
        BodyTooLarge: It goes on beyond the limit; no more than one chunk over it was read.
        RequestCancelled: The client went away before its end.
    """
    first = await receive()
    if first["type"] == "http.request" and not first.get("more_body", False):
        body: bytes = first.get("body", b"")
        if len(body) <= limit:
            return body
    chunks: list[bytes] = []
    size = 0
    message = first
    while True:
        if message["type"] == "http.disconnect":
            raise RequestCancelled("the client went away before the end of its request")
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge(f"the body is over the {limit} bytes allowed", field="body")
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)
        message = await receive()


async def start(send: Send, status: int, headers: Headers) -> None:
    """Sends the head of an answer."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def respond(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Sends a whole answer."""
    length = (b"content-length", str(len(body)).encode())
    await start(send, status, (*headers, length))
    await send({"type": "http.response.body", "body": body})
