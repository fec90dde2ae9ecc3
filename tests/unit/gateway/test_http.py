"""Bodies and answers straight on ASGI, with senders that do not keep to the rules."""

from collections.abc import Iterable
from typing import Any

import pytest
from starlette.types import Message, Scope

from omnistage_common.errors import BodyTooLarge, InvalidRequest, RequestCancelled
from omnistage_gateway.endpoints.http import (
    JSON,
    declared_length,
    header,
    read_body,
    respond,
    start,
)

LIMIT = 100


def scope(*headers: tuple[bytes, bytes]) -> Scope:
    """The head of a request."""
    return {"type": "http", "headers": list(headers)}


class Sender:
    """A client that sends chunks for as long as it is listened to.

    Args:
        chunks: What it sends.
        ends: Whether the last one says so; it hangs up otherwise.
    """

    def __init__(self, chunks: Iterable[bytes], *, ends: bool = True) -> None:
        self._chunks = list(chunks)
        self._ends = ends
        self.asked = 0

    async def receive(self) -> Message:
        """The next chunk."""
        self.asked += 1
        if not self._chunks:
            return {"type": "http.disconnect"}
        chunk = self._chunks.pop(0)
        more = bool(self._chunks) or not self._ends
        return {"type": "http.request", "body": chunk, "more_body": more}


@pytest.mark.parametrize(
    "chunks",
    [
        [b"whole"],
        [b""],
        [b"", b"a", b"", b"b"],
        [b"x" * LIMIT],
        [b"x" * 60, b"x" * 40],
        [b"x"] * LIMIT,
    ],
)
async def test_a_body_within_the_limit_comes_whole(chunks: list[bytes]) -> None:
    sender = Sender(chunks)

    assert await read_body(sender.receive, LIMIT) == b"".join(chunks)
    assert sender.asked == len(chunks)


@pytest.mark.parametrize(
    ("chunks", "asked"),
    [
        ([b"x" * (LIMIT + 1)], 1),
        ([b"x" * (LIMIT + 1), *[b"x"] * 1000], 1),
        ([b"x" * LIMIT, *[b"x"] * 1000], 2),
        ([b"x" * 30] * 1000, 4),
        ([*[b""] * 50, b"x" * (LIMIT + 1), b"x"], 51),
    ],
)
async def test_reading_stops_at_the_limit(chunks: list[bytes], asked: int) -> None:
    sender = Sender(chunks)

    with pytest.raises(BodyTooLarge) as large:
        await read_body(sender.receive, LIMIT)

    assert large.value.field == "body"
    assert sender.asked == asked


@pytest.mark.parametrize("chunks", [[], [b"half"], [b"x" * 60, b"x" * 40]])
async def test_a_sender_that_hangs_up_cancels_its_request(chunks: list[bytes]) -> None:
    with pytest.raises(RequestCancelled):
        await read_body(Sender(chunks, ends=False).receive, LIMIT)


@pytest.mark.parametrize(
    ("headers", "length"),
    [
        ((), None),
        (((b"content-length", b"0"),), 0),
        (((b"host", b"7"), (b"content-length", b"12")), 12),
        (((b"content-length", b"00012"),), 12),
        (((b"content-length", b"9" * 18),), 10**18 - 1),
    ],
)
def test_the_head_declares_a_length_or_does_not(
    headers: tuple[tuple[bytes, bytes], ...], length: int | None
) -> None:
    assert declared_length(scope(*headers)) == length


@pytest.mark.parametrize(
    "text", [b"", b"-1", b"+1", b"1.5", b"ten", b"0x10", b"1,2", b"\xb2", b"9" * 5000]
)
def test_a_length_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        declared_length(scope((b"content-length", text)))

    assert refused.value.field == "Content-Length"


def test_the_first_header_of_a_name_counts() -> None:
    head = scope((b"a", b"1"), (b"b", b"2"), (b"b", b"3"))

    assert header(head, b"b") == b"2"
    assert header(head, b"c") is None


@pytest.fixture
def sent() -> list[Any]:
    return []


async def test_a_whole_answer_says_how_long_it_is(sent: list[Any]) -> None:
    async def send(message: Message) -> None:
        sent.append(message)

    await respond(send, 200, (JSON,), b"{}")

    assert sent == [
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [JSON, (b"content-length", b"2")],
        },
        {"type": "http.response.body", "body": b"{}"},
    ]


async def test_a_streamed_answer_begins_with_its_head(sent: list[Any]) -> None:
    async def send(message: Message) -> None:
        sent.append(message)

    await start(send, 429, iter([(b"retry-after", b"1")]))

    (head,) = sent
    assert (head["status"], head["headers"]) == (429, [(b"retry-after", b"1")])
