"""Outputs of stages composed into one answer, whole and streamed."""

import base64
import json
from typing import Any

import pytest

from omnistage_common.errors import EngineFailed, MissingOutput, StageUnavailable
from omnistage_common.ids import ModelName, OutputName, RequestId, StageName
from omnistage_common.links.frames import FinishReason
from omnistage_common.payloads import (
    Content,
    Conversation,
    ElementType,
    PayloadKind,
    Tensor,
    TensorHeader,
)
from omnistage_common.pipeline.plan import Modality, OutputPlan
from omnistage_gateway.media.formats import AudioFormat
from omnistage_gateway.openai.answers import AnswerUsage, RequestReport
from omnistage_gateway.requests.answering import Transcripts
from omnistage_gateway.requests.chat_answers import StreamedChat, WholeChat

MODEL = ModelName("omni")
USAGE = AnswerUsage.of(3, 2)
REPORT = RequestReport(request_id=RequestId("r"), total_ms=1.0)


def output(modality: Modality | None, kind: PayloadKind = PayloadKind.TEXT) -> OutputPlan:
    """What the plan says of an output."""
    return OutputPlan(
        stage=StageName("stage"), output=OutputName("output"), kind=kind, modality=modality
    )


TEXT = output(Modality.TEXT)
AUDIO = output(Modality.AUDIO, PayloadKind.WAVEFORM)
TRANSCRIPT = output(None)


def sound(samples: bytes, rate_hz: int = 24_000) -> Tensor:
    """Samples of 16 bits."""
    header = TensorHeader(
        element_type=ElementType.INT16, shape=(len(samples) // 2,), rate_hz=rate_hz
    )
    return Tensor(header=header, data=samples)


class Client:
    """Keeps what was sent to it."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.over = False

    async def send(self, data: bytes, *, last: bool) -> None:
        """Takes a piece."""
        assert not self.over
        self.pieces.append(data)
        self.over = last

    @property
    def events(self) -> list[Any]:
        """All events; the last is the string `[DONE]` or an error."""
        lines = b"".join(self.pieces).decode().strip().split("\n\n")
        data = [line.removeprefix("data: ") for line in lines]
        return [each if each == "[DONE]" else json.loads(each) for each in data]

    @property
    def deltas(self) -> list[dict[str, Any]]:
        """The deltas of all chunks."""
        return [e["choices"][0]["delta"] for e in self.events if e != "[DONE]" and e.get("choices")]


@pytest.fixture
def client() -> Client:
    return Client()


def streamed(client: Client, audio: AudioFormat | None = None) -> StreamedChat:
    """An answer on its way to a client."""
    return StreamedChat(client.send, request_id=RequestId("r"), model=MODEL, audio_format=audio)


async def finish(answer: StreamedChat, usage: AnswerUsage | None = None) -> None:
    """Ends a stream well."""
    await answer.finish(finish_reason=FinishReason.STOP, usage=usage, report=REPORT)


async def body_of(answer: WholeChat, reason: FinishReason = FinishReason.STOP) -> dict[str, Any]:
    """The body of a whole answer."""
    body = await answer.body(model=MODEL, finish_reason=reason, usage=USAGE, report=REPORT)
    document: dict[str, Any] = json.loads(body)
    return document


async def test_a_whole_answer_holds_all_text_and_sound_in_order() -> None:
    answer = WholeChat(AudioFormat.PCM16)
    answer.deliver(TEXT, "one ", 0)
    answer.deliver(AUDIO, sound(b"\1\0"), 0)
    answer.deliver(TEXT, "two", 0)
    answer.deliver(AUDIO, sound(b"\2\0"), 0)
    await answer.flush()

    (choice,) = (await body_of(answer))["choices"]

    assert choice["message"]["content"] == "one two"
    assert choice["message"]["audio"]["transcript"] == "one two"
    assert base64.b64decode(choice["message"]["audio"]["data"]) == b"\1\0\2\0"
    assert choice["finish_reason"] == "stop"


async def test_a_whole_answer_outlives_the_tensors_it_was_made_of() -> None:
    memory = bytearray(b"\1\0")
    answer = WholeChat(AudioFormat.PCM16)
    view = sound(bytes(2))
    answer.deliver(AUDIO, Tensor(header=view.header, data=memoryview(memory)), 0)

    memory[:] = b"\7\7"

    audio = (await body_of(answer))["choices"][0]["message"]["audio"]
    assert base64.b64decode(audio["data"]) == b"\1\0"


@pytest.mark.parametrize("encoding", list(AudioFormat))
async def test_no_sound_is_an_error_in_every_format(encoding: AudioFormat, client: Client) -> None:
    whole, stream = WholeChat(encoding), streamed(client, encoding)
    for answer in (whole, stream):
        answer.deliver(TEXT, "hello", 0)
        answer.deliver(AUDIO, sound(b""), 0)

    with pytest.raises(MissingOutput):
        await body_of(whole)
    with pytest.raises(MissingOutput):
        await finish(stream)
    assert not client.over


@pytest.mark.parametrize(
    ("plan", "content"),
    [
        (TEXT, sound(b"\0\0")),
        (TEXT, Conversation(messages=())),
        (TRANSCRIPT, sound(b"\0\0")),
        (AUDIO, "la la la"),
    ],
)
async def test_content_that_is_not_what_the_plan_says_is_an_error(
    plan: OutputPlan, content: Content, client: Client
) -> None:
    for answer in (WholeChat(AudioFormat.WAV), streamed(client, AudioFormat.WAV)):
        with pytest.raises(EngineFailed, match="where the plan says"):
            answer.deliver(plan, content, 0)


async def test_transcripts_are_kept_by_item_and_never_part_of_the_text(client: Client) -> None:
    whole, stream = WholeChat(None), streamed(client)
    for answer in (whole, stream):
        for index, text in [(1, "se"), (0, "first"), (1, "cond")]:
            answer.deliver(TRANSCRIPT, text, index)
        answer.deliver(TEXT, "reply", 0)
        await answer.flush()

        assert answer.transcripts.all() == ("first", "second")
    assert (await body_of(whole))["choices"][0]["message"]["content"] == "reply"
    assert [delta["content"] for delta in client.deltas] == ["", "reply"]


def test_there_are_no_transcripts_without_audio() -> None:
    assert Transcripts().all() == ()


async def test_a_stream_sends_nothing_before_there_is_something(client: Client) -> None:
    answer = streamed(client)

    await answer.flush()
    answer.deliver(TRANSCRIPT, "heard", 0)
    await answer.flush()

    assert client.pieces == []
    assert not answer.started


async def test_all_of_one_turn_leaves_as_one_piece(client: Client) -> None:
    answer = streamed(client)
    for text in ("a", "b", "c"):
        answer.deliver(TEXT, text, 0)
    await answer.flush()
    answer.deliver(TEXT, "d", 0)
    await answer.flush()
    await answer.flush()

    assert len(client.pieces) == 2
    assert client.deltas[0]["role"] == "assistant"
    assert [delta["content"] for delta in client.deltas[1:]] == ["a", "b", "c", "d"]
    assert answer.started


async def test_a_stream_ends_with_reason_usage_and_done(client: Client) -> None:
    answer = streamed(client)
    answer.deliver(TEXT, "a", 0)
    await finish(answer, USAGE)

    *_, end, usage, done = client.events
    assert end["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 5
    assert usage["omnistage"]["request_id"] == "r"
    assert done == "[DONE]"
    assert client.over


async def test_a_stream_without_a_word_is_complete_all_the_same(client: Client) -> None:
    await finish(streamed(client))

    first, end, done = client.events
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert end["choices"][0]["finish_reason"] == "stop"
    assert end["omnistage"]["request_id"] == "r"
    assert done == "[DONE]"


@pytest.mark.parametrize("encoding", [AudioFormat.PCM16, AudioFormat.WAV, AudioFormat.FLAC])
async def test_streamed_sound_is_one_file_of_the_format(
    encoding: AudioFormat, client: Client
) -> None:
    answer = streamed(client, encoding)
    for _ in range(3):
        answer.deliver(AUDIO, sound(b"\1\0" * 1001), 0)
        await answer.flush()
    await finish(answer)

    pieces = [delta.get("audio", {}).get("data", "") for delta in client.deltas]
    file = b"".join(base64.b64decode(piece) for piece in pieces)
    assert base64.b64decode("".join(pieces)) == file
    if encoding is AudioFormat.FLAC:
        assert file.startswith(b"fLaC")
    else:
        assert file.endswith(b"\1\0" * 3003)
        assert len(file) - 6006 == (44 if encoding is AudioFormat.WAV else 0)


async def test_sound_that_was_not_asked_for_is_not_streamed(client: Client) -> None:
    answer = streamed(client)
    answer.deliver(AUDIO, sound(b"\1\0"), 0)
    await answer.flush()

    assert client.pieces == []


async def test_a_failed_stream_ends_with_the_error_and_drops_what_waits(client: Client) -> None:
    answer = streamed(client)
    answer.deliver(TEXT, "sent", 0)
    await answer.flush()
    answer.deliver(TEXT, "dropped", 0)

    await answer.fail(StageUnavailable("the speaker is gone"))

    assert [delta.get("content") for delta in client.deltas] == ["", "sent"]
    assert client.events[-1]["error"] == {
        "message": "the speaker is gone",
        "type": "service_unavailable",
        "param": None,
        "code": "stage_unavailable",
    }
    assert client.over
