"""Streams that the official client reads as its own."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from omnistage_common.errors import StageUnavailable
from omnistage_common.ids import ModelName, RequestId, StageName
from omnistage_common.links.frames import FinishReason
from omnistage_gateway.openai.answers import AnswerUsage, RequestReport
from omnistage_gateway.openai.chunks import DONE, ChunkEncoder
from omnistage_gateway.openai.events import error_event

REPORT = RequestReport(request_id=RequestId("abc"), total_ms=4.0)


def encoder(*, audio: bool = False) -> ChunkEncoder:
    return ChunkEncoder(RequestId("abc"), 1_700_000_000, ModelName('om"ni'), audio=audio)


def chunks(stream: bytes) -> list[ChatCompletionChunk]:
    events = stream.split(b"\n\n")
    assert events.pop() == b""
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in events)
    return [
        ChatCompletionChunk.model_validate_json(event.removeprefix(b"data: "), strict=True)
        for event in events
    ]


def chunk(stream: bytes) -> ChatCompletionChunk:
    (only,) = chunks(stream)
    return only


def sounds(stream: bytes) -> list[str]:
    """The base64 of each audio delta."""
    deltas = [part.choices[0].delta.audio for part in chunks(stream)]
    return [delta.data for delta in deltas if delta is not None and delta.data is not None]


def test_every_chunk_carries_the_same_head() -> None:
    encode = encoder(audio=True)
    stream = (
        encode.role()
        + encode.text("Paris")
        + encode.audio(b"sound.")
        + encode.finish(FinishReason.STOP)
        + encode.usage(AnswerUsage.of(1, 2), REPORT)
    )
    heads = {(part.id, part.created, part.model, part.object) for part in chunks(stream)}
    assert heads == {("chatcmpl-abc", 1_700_000_000, 'om"ni', "chat.completion.chunk")}


def test_the_first_chunk_names_the_role() -> None:
    (choice,) = chunk(encoder().role()).choices
    assert (choice.index, choice.delta.role, choice.delta.content) == (0, "assistant", "")
    assert choice.finish_reason is None


@pytest.mark.parametrize("text", ["Paris", '"\\\n\r\t\x00', "日本 🙂", "\u2028\u2029\x85", ""])
def test_a_piece_of_text_arrives_as_it_was(text: str) -> None:
    (choice,) = chunk(encoder().text(text)).choices
    assert choice.delta.content == text
    assert choice.delta.audio is None


def test_no_event_is_broken_by_a_client_that_knows_every_line_boundary() -> None:
    event = encoder(audio=True).text("a\u2028b\u2029c\x85d\x0be\x1cf").decode()
    assert len(event.splitlines()) == 2
    report = RequestReport(request_id=RequestId("abc"), transcripts=("\u2028",), total_ms=1.0)
    assert len(encoder().finish(FinishReason.STOP, report).decode().splitlines()) == 2
    failed = error_event(StageUnavailable("\u2029"))
    assert len(failed.decode().splitlines()) == 2


def test_text_is_its_own_transcript_when_the_answer_is_spoken() -> None:
    delta = chunk(encoder(audio=True).text("Päris")).choices[0].delta
    assert delta.content == "Päris"
    assert delta.audio is not None
    assert (delta.audio.transcript, delta.audio.data, delta.audio.id) == ("Päris", None, None)


def test_only_the_first_audio_delta_names_the_audio_and_only_the_last_its_expiry() -> None:
    encode = encoder(audio=True)
    stream = (
        encode.audio(b"abcdefghijkl")
        + encode.audio(b"mnopqrstuvwx")
        + encode.finish(FinishReason.STOP)
    )
    deltas = [part.choices[0].delta.audio for part in chunks(stream)]
    assert [delta and (delta.id, delta.expires_at) for delta in deltas] == [
        ("audio-abc", None),
        (None, None),
        (None, 1_700_000_000),
        None,
    ]


@pytest.mark.parametrize("size", [1, 2, 5, 6, 7, 44, 1000])
def test_audio_of_any_piece_size_joins_both_as_bytes_and_as_base64(size: int) -> None:
    sound = bytes(range(256)) * 5
    encode = encoder(audio=True)
    stream = b"".join(encode.audio(sound[at : at + size]) for at in range(0, len(sound), size))
    stream += encode.finish(FinishReason.STOP)
    parts = sounds(stream)
    assert b"".join(base64.b64decode(part, validate=True) for part in parts) == sound
    assert base64.b64decode("".join(parts), validate=True) == sound
    assert all(len(base64.b64decode(part)) % 4 == 0 for part in parts)


@pytest.mark.parametrize(
    ("media_type", "kind"), [("image/png", "image_url"), ("video/mp4", "video_url")]
)
def test_an_image_or_a_video_is_a_part_of_the_content(media_type: str, kind: str) -> None:
    data = bytes(range(256))
    event = json.loads(encoder().media(media_type, data).removeprefix(b"data: "))
    (part,) = event["choices"][0]["delta"]["content"]
    assert part.keys() == {"type", kind}
    assert part["type"] == kind
    head, _, encoded = part[kind]["url"].partition(",")
    assert head == f"data:{media_type};base64"
    assert base64.b64decode(encoded, validate=True) == data


def test_a_step_adds_nothing_and_says_how_far_it_is() -> None:
    part = chunk(encoder().progress(StageName("denoiser"), 3, 20))
    (choice,) = part.choices
    assert choice.finish_reason is None
    assert choice.delta.to_dict() == {}
    assert extension(part) == {"progress": {"stage": "denoiser", "done": 3, "total": 20}}


def test_an_answer_without_sound_mentions_none() -> None:
    encode = encoder()
    stream = encode.role() + encode.text("x") + encode.finish(FinishReason.STOP)
    assert b"audio" not in stream


@pytest.mark.parametrize(
    ("reason", "word"),
    [(FinishReason.STOP, "stop"), (FinishReason.LENGTH, "length"), (FinishReason.NONE, "stop")],
)
def test_the_finish_says_why(reason: FinishReason, word: str) -> None:
    (choice,) = chunk(encoder().finish(reason)).choices
    assert choice.finish_reason == word
    assert choice.delta.content is None


def extension(part: ChatCompletionChunk) -> Any:
    return (part.model_extra or {}).get("omnistage")


def test_the_extension_rides_on_the_usage_chunk_or_else_on_the_finish() -> None:
    expected = {"request_id": "abc", "transcripts": [], "stages": [], "total_ms": 4.0}
    usage = chunk(encoder().usage(AnswerUsage.of(3, 4), REPORT))
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.total_tokens == 7
    assert extension(usage) == expected
    assert extension(chunk(encoder().finish(FinishReason.STOP))) is None
    assert extension(chunk(encoder().finish(FinishReason.STOP, REPORT))) == expected


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@asynccontextmanager
async def replaying(stream: bytes) -> AsyncIterator[str]:
    """A server that answers every request with this stream, in pieces of a few bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        for at in range(0, len(stream), 7):
            writer.write(stream[at : at + 7])
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}/v1"


async def received(stream: bytes) -> tuple[list[ChatCompletionChunk], openai.APIError | None]:
    """What the official client makes of a stream."""
    parts: list[ChatCompletionChunk] = []
    async with (
        replaying(stream) as url,
        openai.AsyncOpenAI(api_key="none", base_url=url, max_retries=0) as client,
        await client.chat.completions.create(
            model="omni", messages=[{"role": "user", "content": "hello"}], stream=True
        ) as replies,
    ):
        try:
            async for part in replies:
                parts.append(part)  # noqa: PERF401 - what came before an error counts too
        except openai.APIError as error:
            return parts, error
    return parts, None


def spoken() -> Iterator[bytes]:
    encode = encoder(audio=True)
    yield encode.role()
    for word in ("Paris", " is", " it", "\u2028"):
        yield encode.text(word)
    for piece in (b"0123456", b"789", b"abcdefghij"):
        yield encode.audio(piece)
    yield encode.finish(FinishReason.STOP)
    yield encode.usage(AnswerUsage.of(3, 4), REPORT)
    yield DONE


async def test_the_official_client_reads_a_whole_stream() -> None:
    parts, error = await received(b"".join(spoken()))
    assert error is None
    deltas = [part.choices[0].delta for part in parts if part.choices]
    assert "".join(delta.content or "" for delta in deltas) == "Paris is it\u2028"
    audio = [delta.audio for delta in deltas if delta.audio is not None]
    assert "".join(piece.transcript or "" for piece in audio) == "Paris is it\u2028"
    assert base64.b64decode("".join(piece.data or "" for piece in audio)) == b"0123456789abcdefghij"
    assert parts[-1].usage is not None


async def test_the_official_client_raises_an_error_event_after_what_came_before() -> None:
    encode = encoder()
    lost = StageUnavailable("stage `talker` lost its replica", retry_after=1.0)
    parts, error = await received(encode.role() + encode.text("Par") + error_event(lost))
    assert [part.choices[0].delta.content for part in parts] == ["", "Par"]
    assert error is not None
    assert (error.message, error.code) == ("stage `talker` lost its replica", "stage_unavailable")
    assert error.type == "service_unavailable"


def test_an_error_event_is_one_event_in_openais_error_shape() -> None:
    event = error_event(StageUnavailable("gone"))
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    assert json.loads(event.removeprefix(b"data: "))["error"]["message"] == "gone"
