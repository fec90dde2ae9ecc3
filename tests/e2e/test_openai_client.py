"""The official OpenAI client, unmodified, against real processes."""

import base64
import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
import soundfile
from openai.types.chat import ChatCompletionAudioParam, ChatCompletionChunk

from fakes.deployment import Deploy, Deployment, plan_from_text
from fakes.pipelines import listening_pipeline

MODEL = "simulated-omni"
TEXT = " word" * 16
SAMPLES = 7680
RATE = 24_000
ASK: Any = {"model": MODEL, "messages": [{"role": "user", "content": "say sixteen words please"}]}

Format = Literal["wav", "pcm16", "flac", "mp3", "opus"]


def spoken(encoding: Format) -> dict[str, Any]:
    """The question, to be answered aloud."""
    audio = ChatCompletionAudioParam(voice="alloy", format=encoding)
    return {**ASK, "modalities": ["text", "audio"], "audio": audio}


@pytest.fixture
async def client(omni: Deployment) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=omni.gateway.url + "/v1", api_key="none", max_retries=0, timeout=30
    ) as client:
        yield client


@pytest.fixture
def blocking(omni: Deployment) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=omni.gateway.url + "/v1", api_key="none", max_retries=0, timeout=30
    ) as client:
        yield client


def test_text_comes_with_usage_and_a_finish_reason(blocking: openai.OpenAI) -> None:
    answer = blocking.chat.completions.create(**ASK)

    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == TEXT
    assert choice.message.audio is None
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 16)
    assert answer.usage.total_tokens == 20


async def test_max_tokens_are_obeyed(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**ASK, max_completion_tokens=3)

    assert answer.choices[0].message.content == " word word word"


@pytest.mark.parametrize("encoding", ["wav", "flac"])
async def test_speech_comes_as_a_file_of_the_asked_format(
    client: openai.AsyncOpenAI, encoding: Format
) -> None:
    answer = await client.chat.completions.create(**spoken(encoding))

    message = answer.choices[0].message
    assert message.content == TEXT
    assert message.audio is not None
    assert message.audio.transcript == TEXT
    with soundfile.SoundFile(io.BytesIO(base64.b64decode(message.audio.data))) as file:
        assert (file.format, file.samplerate, file.frames) == (encoding.upper(), RATE, SAMPLES)
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.audio_tokens == 16


def test_an_answer_says_what_each_stage_took(blocking: openai.OpenAI, omni: Deployment) -> None:
    answer = blocking.chat.completions.create(**spoken("wav"))

    report = (answer.model_extra or {})["omnistage"]
    assert [stage["replica"] for stage in report["stages"]] == list(omni.replicas)
    assert report["total_ms"] >= sum(stage["run_ms"] for stage in report["stages"])


async def chunks_of(client: openai.AsyncOpenAI, **question: Any) -> list[ChatCompletionChunk]:
    stream = await client.chat.completions.create(**question, stream=True)
    return [chunk async for chunk in stream]


async def test_streamed_text_adds_up_and_ends_once(client: openai.AsyncOpenAI) -> None:
    chunks = await chunks_of(client, **ASK)

    deltas = [chunk.choices[0] for chunk in chunks]
    assert deltas[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in deltas) == TEXT
    assert [choice.finish_reason for choice in deltas if choice.finish_reason] == ["length"]
    assert deltas[-1].finish_reason == "length"
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


async def test_usage_is_streamed_last_to_those_who_ask(client: openai.AsyncOpenAI) -> None:
    *rest, last = await chunks_of(client, **ASK, stream_options={"include_usage": True})

    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (4, 16)
    assert all(chunk.usage is None for chunk in rest)


def audio_of(chunks: list[ChatCompletionChunk]) -> tuple[str, bytes]:
    """Transcript and bytes of a streamed answer's audio."""
    choices: list[Any] = [choice for chunk in chunks for choice in chunk.to_dict()["choices"]]  # type: ignore[attr-defined]
    pieces = [choice["delta"].get("audio") or {} for choice in choices]
    transcript = "".join(piece.get("transcript") or "" for piece in pieces)
    return transcript, b"".join(base64.b64decode(piece.get("data") or "") for piece in pieces)


async def test_streamed_pcm_is_every_sample_and_nothing_else(client: openai.AsyncOpenAI) -> None:
    chunks = await chunks_of(client, **spoken("pcm16"))

    transcript, samples = audio_of(chunks)
    assert transcript == TEXT
    assert samples == bytes(2 * SAMPLES)
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_a_streamed_wav_plays_to_its_end(client: openai.AsyncOpenAI) -> None:
    chunks = await chunks_of(client, **spoken("wav"), stream_options={"include_usage": True})

    transcript, file = audio_of(chunks)
    samples, rate = soundfile.read(io.BytesIO(file), dtype="int16")
    assert transcript == TEXT
    assert (len(samples), rate) == (SAMPLES, RATE)


async def test_models_can_be_listed_and_looked_up(client: openai.AsyncOpenAI) -> None:
    listed = [model.id async for model in client.models.list()]
    found = await client.models.retrieve(MODEL)

    assert listed == [MODEL]
    assert found.id == MODEL
    assert found.owned_by == "omnistage"


async def test_an_unknown_model_is_not_found(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as asked:
        await client.chat.completions.create(**{**ASK, "model": "gpt-9"})
    with pytest.raises(openai.NotFoundError) as looked_up:
        await client.models.retrieve("gpt-9")

    assert asked.value.code == looked_up.value.code == "model_not_found"
    assert asked.value.param == "model"
    assert MODEL in asked.value.message


async def test_a_wrong_value_is_a_bad_request_that_names_it(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(**ASK, temperature=9)

    assert refused.value.param == "temperature"
    assert refused.value.type == "invalid_request_error"


async def test_a_passed_deadline_is_a_504(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as late:
        await client.chat.completions.create(
            **ASK, max_tokens=2**31 - 1, extra_headers={"X-Request-Timeout": "0.0001"}
        )

    assert late.value.status_code == 504
    assert late.value.type == "timeout_error"


def test_too_many_requests_are_a_rate_limit(omni: Deployment) -> None:
    gateway = omni.add_gateway("--max-requests", "0")
    base_url = gateway.url + "/v1"
    with (
        openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client,
        pytest.raises(openai.RateLimitError) as full,
    ):
        client.chat.completions.create(**ASK)

    gateway.close()
    assert full.value.response.headers["retry-after"] == "1"
    assert full.value.code == "too_many_requests"


def test_failures_of_stages_are_raised_before_and_within_a_stream(deploy: Deploy) -> None:
    """The speaker's engine fails at its 24th step, and is killed afterwards."""
    deployment = deploy(plan_from_text(listening_pipeline()))
    question: Any = {**spoken("pcm16"), "model": "listening"}
    url = deployment.gateway.url + "/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(**question, max_tokens=25, stream=True)
        assert next(stream).choices[0].delta.role == "assistant"
        with pytest.raises(openai.APIError) as failed:
            list(stream)
        with pytest.raises(openai.InternalServerError) as broken:
            client.chat.completions.create(**question, max_tokens=25)
        deployment.replica("speaker-0").kill()
        with pytest.raises(openai.APIStatusError) as dead:
            client.chat.completions.create(**question)

    assert (failed.value.code, failed.value.type) == ("engine_failed", "server_error")
    assert (broken.value.status_code, broken.value.code) == (500, "engine_failed")
    assert (dead.value.status_code, dead.value.code) == (503, "stage_unavailable")
    assert dead.value.response.headers["retry-after"] == "1"


def test_answers_can_be_written_to_disk_and_read_back(
    blocking: openai.OpenAI, tmp_path: Path
) -> None:
    answer = blocking.chat.completions.create(**spoken("wav"))
    audio = answer.choices[0].message.audio
    assert audio is not None
    path = tmp_path / "answer.wav"
    path.write_bytes(base64.b64decode(audio.data))

    assert soundfile.info(str(path)).frames == SAMPLES
