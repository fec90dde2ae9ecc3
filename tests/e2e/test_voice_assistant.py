"""The shipped voice assistant as real processes with real weights, asked by the official client."""

import base64
import difflib
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import openai
import pytest
import pytest_asyncio

from fakes.deployment import Deployment, deployed, resolved_plan, within
from fakes.engine_io import RecordedOutputs, engine_request, engine_spec
from fakes.raw_client import RawClient, question
from omnistage_common.payloads import (
    ElementType,
    Payload,
    PayloadKind,
    Tensor,
    TensorHeader,
)
from omnistage_gateway.media.audio import decode_audio
from omnistage_gateway.media.formats import AudioInputFormat, EncodedAudio
from omnistage_stage.engines.pocketsphinx import PocketsphinxEngine

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
MODEL: Final = "voice-assistant"
QUESTION: Final = "What is the capital of France?"
RATE_HZ: Final = 24_000


@pytest.fixture(scope="module")
def assistant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    plan = resolved_plan(file=DEPLOY / "pipelines" / "voice-assistant.yaml")
    with deployed(plan, tmp_path_factory.mktemp("assistant")) as deployment:
        yield deployment


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(assistant: Deployment) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{assistant.gateway.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ears() -> AsyncIterator[PocketsphinxEngine]:
    """The recogniser of the pipeline, to hear what the pipeline says."""
    engine = PocketsphinxEngine(engine_spec({"transcript": PayloadKind.TEXT}))
    await engine.load()
    yield engine
    await engine.close()


async def heard(ears: PocketsphinxEngine, sound: Tensor) -> str:
    """What is said in a recording."""
    outputs = RecordedOutputs()
    recording = Payload(kind=PayloadKind.WAVEFORM, content=sound)
    await ears.run(engine_request({"audio": (recording,)}), outputs)
    return outputs.text


def wav(data: bytes) -> Tensor:
    """The samples of a WAV file."""
    return decode_audio(EncodedAudio(data=data, format=AudioInputFormat.WAV, field="answer"))


def says_the_same(text: str, speech: str) -> bool:
    """Whether speech, as it was recognised, is that text; a word in three may be misheard."""
    words = re.findall(r"[a-z']+", text.lower())
    return difflib.SequenceMatcher(None, words, speech.split()).ratio() > 2 / 3


def spoken_question() -> dict[str, Any]:
    """A message that consists of the recording in the repository."""
    data = base64.b64encode((DEPLOY / "samples" / "question.wav").read_bytes()).decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    return {"role": "user", "content": [part]}


async def test_a_spoken_question_gets_the_right_answer_in_text_and_speech(
    client: openai.AsyncOpenAI, ears: PocketsphinxEngine
) -> None:
    messages: Any = [spoken_question()]
    answer: Any = await client.chat.completions.create(
        model=MODEL,
        messages=messages,
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "wav"},
    )

    message = answer.choices[0].message
    speech = await heard(ears, wav(base64.b64decode(message.audio.data)))
    assert "paris" in message.content.lower()
    assert "paris" in speech
    assert says_the_same(message.content, speech), (message.content, speech)
    assert message.audio.transcript == message.content
    assert answer.omnistage["transcripts"] == ["what is the capital of france"]
    assert [stage["name"] for stage in answer.omnistage["stages"]] == [
        "recogniser",
        "thinker",
        "speaker",
    ]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 0


async def test_a_stream_has_the_text_first_and_then_the_same_in_speech(
    client: openai.AsyncOpenAI, ears: PocketsphinxEngine
) -> None:
    stream: Any = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "pcm16"},
        stream=True,
    )
    order: list[str] = []
    text, samples = "", b""
    async for chunk in stream:
        delta = chunk.choices[0].delta
        if delta.content:
            order.append("text")
            text += delta.content
        if delta.audio is not None and delta.audio.data:
            order.append("audio")
            samples += base64.b64decode(delta.audio.data)

    header = TensorHeader(
        element_type=ElementType.INT16, shape=(len(samples) // 2,), rate_hz=RATE_HZ
    )
    speech = await heard(ears, Tensor(header=header, data=samples))
    assert order.count("text") > 1, "text comes in deltas"
    assert order.index("audio") == order.count("text"), "speech follows the text"
    assert "paris" in text.lower()
    assert says_the_same(text, speech), (text, speech)


async def test_text_alone_visits_the_thinker_alone(client: openai.AsyncOpenAI) -> None:
    answer: Any = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}]
    )

    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].message.audio is None
    assert [stage["name"] for stage in answer.omnistage["stages"]] == ["thinker"]


async def test_earlier_turns_are_part_of_the_question(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": "The capital of France is Paris."},
            {"role": "user", "content": "Repeat the name of that city, nothing else."},
        ],
        max_completion_tokens=16,
    )

    assert "Paris" in (answer.choices[0].message.content or "")


async def test_an_unknown_voice_is_refused_by_name(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hello"}],
            modalities=["text", "audio"],
            audio={"voice": "nobody", "format": "wav"},
        )

    assert refused.value.param == "audio.voice"


async def test_a_question_longer_than_the_context_is_refused_by_name(
    client: openai.AsyncOpenAI,
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "word " * 5000}]
        )

    assert refused.value.param == "messages"


async def test_the_model_stops_when_the_client_hangs_up(assistant: Deployment) -> None:
    client = RawClient(assistant.gateway.port)
    client.ask(question(MODEL, max_tokens=1500, ignore_eos=True, stream=True))
    assert client.read_head()[0] == 200
    assert assistant.held()["running"] == 1

    gone = client.hang_up()

    assert within(gone + 1.0 - time.monotonic(), lambda: assistant.idle)
