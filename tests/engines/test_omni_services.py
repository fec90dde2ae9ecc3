"""Omni models as three services each say what they say as one model, over every transport."""

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio
import soundfile
from msgspec import Struct
from PIL import Image

from fakes.deployment import SIMULATED_OMNI, Deployment, deployed, resolved_plan
from fakes.exact_requests import ExactAnswer, ExactRequests, exact_requests, tensor_payload
from fakes.omni_references import Question, Said
from fakes.own_process import OwnProcess
from omnistage_common.payloads import (
    AudioPart,
    Conversation,
    ImagePart,
    Message,
    Parameters,
    Payload,
    PayloadKind,
    TextPart,
)
from omnistage_common.pipeline.plan import Modality, PipelinePlan

pytestmark = pytest.mark.asyncio(loop_scope="module")

BOTH = frozenset({Modality.TEXT, Modality.AUDIO})
TOKENS, FRAMES = 20, 60
VOICES = {"qwen3-omni": "ethan", "qwen2.5-omni": "Chelsie"}
"""Whom the references let speak."""
LONG = " ".join(f"number {count}" for count in range(150))
"""A prompt whose hidden states do not ride within a message."""
ROUNDING = 1e-5
"""Of full scale: how far samples decoded in chunks may be from those decoded at once, since oneDNN's
convolutions choose their kernels by length; see docs/explanation/exactness.md."""


class Model(Struct, frozen=True, kw_only=True):
    """The whole model, in a process of its own."""

    family: str
    folder: Path
    process: OwnProcess

    def answer(self, question: Question) -> Said:
        """What it says."""
        said: Said = self.process.call("answer", question, tokens=TOKENS, frames=FRAMES)
        return said


@pytest.fixture(scope="module", params=["qwen3-omni", "qwen2.5-omni"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    """The whole model."""
    folder = tmp_path_factory.mktemp("model")
    process = OwnProcess("fakes.omni_references", "reference_for", request.param, folder)
    try:
        # Its first answer says that its checkpoint is written.
        model = Model(family=request.param, folder=folder, process=process)
        model.answer(Question(text="Hello there.", seed=1))
        yield model
    finally:
        process.close()


def plan_for(model: Model, *overrides: str) -> PipelinePlan:
    """The shipped pipeline with this model."""
    return resolved_plan(
        f"model.source={model.folder.as_uri()}",
        f"stages.talker.engineArgs.max_frames={FRAMES}",
        *overrides,
        file=SIMULATED_OMNI.with_name(f"{model.family}-tiny.yaml"),
    )


@pytest.fixture(scope="module")
def services(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Thinker, talker and vocoder, a process each."""
    with deployed(plan_for(model), tmp_path_factory.mktemp("services")) as deployment:
        yield deployment
        assert deployment.idle


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def streaming(services: Deployment) -> AsyncIterator[ExactRequests]:
    """Requests over edges that stream."""
    async with exact_requests(services) as requests:
        yield requests


async def answer_to(requests: ExactRequests, question: Question) -> ExactAnswer:
    """What the services say to it."""
    parts: list[TextPart | AudioPart | ImagePart] = []
    inputs: dict[str, tuple[Payload, ...]] = {}
    if question.audio is not None:
        parts.append(AudioPart(index=0))
        audio = tensor_payload(question.audio, PayloadKind.WAVEFORM, rate_hz=16000)
        inputs["audio"] = (audio,)
    if question.image is not None:
        parts.append(ImagePart(index=0))
        inputs["image"] = (tensor_payload(question.image, PayloadKind.IMAGE),)
    message = Message(role="user", parts=(*parts, TextPart(text=question.text)))
    conversation = Conversation(messages=(message,))
    inputs["conversation"] = (Payload(kind=PayloadKind.CONVERSATION, content=conversation),)
    return await requests.ask(
        inputs, BOTH, Parameters(max_tokens=TOKENS, temperature=0, seed=question.seed)
    )


def wav(samples: Any) -> str:
    """A recording as a file of 32-bit floats in base64: not a bit is lost."""
    file = io.BytesIO()
    soundfile.write(file, samples, 16000, format="WAV", subtype="FLOAT")
    return base64.b64encode(file.getvalue()).decode()


def png(pixels: Any) -> str:
    """A picture as a file in base64."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def check_same(answer: ExactAnswer, said: Said, *, rounding: float) -> None:
    """Both say the same, sample for sample."""
    assert answer.text == said.text
    assert answer.rates == {24000}
    assert answer.audio.shape == said.samples.shape
    assert np.abs(answer.audio - said.samples).max() <= rounding
    assert np.abs(said.samples).max() > 100 * ROUNDING


TONE = (0.3 * np.sin(np.arange(16000) * 0.07)).astype(np.float32)
PICTURE = np.random.default_rng(1).integers(0, 255, (96, 64, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "question",
    [
        Question(text="Hello there.", seed=1),
        Question(text="What is a stage?", seed=2),
        Question(text="What was that?", seed=8, audio=TONE),
        Question(text="What is it?", seed=9, image=PICTURE),
        Question(text="Do they belong together?", seed=3, audio=TONE, image=PICTURE),
    ],
    ids=["short", "another", "recording", "picture", "both"],
)
async def test_streamed_services_say_what_the_model_says(
    model: Model, streaming: ExactRequests, question: Question
) -> None:
    answer = await answer_to(streaming, question)

    check_same(answer, model.answer(question), rounding=ROUNDING)


async def test_unstreamed_services_are_equal_bit_for_bit(
    model: Model, services: Deployment
) -> None:
    question = Question(text="Hello there.", seed=3)

    async with exact_requests(services, plan_for(model, "streaming.chunked=false")) as full:
        answer = await answer_to(full, question)

    check_same(answer, model.answer(question), rounding=0)


async def test_four_at_once_say_what_each_says_alone(
    model: Model, streaming: ExactRequests
) -> None:
    questions = [
        Question(text=text, seed=seed)
        for seed, text in enumerate(("Hello there.", "Go on.", "What is a stage?", LONG), 4)
    ]

    answers = await asyncio.gather(*(answer_to(streaming, question) for question in questions))

    for answer, question in zip(answers, questions, strict=True):
        check_same(answer, model.answer(question), rounding=ROUNDING)


async def test_the_official_client_reads_and_hears_it_as_it_is_made(
    model: Model, services: Deployment
) -> None:
    question = Question(text="Answer this.", seed=11, audio=TONE, image=PICTURE)
    content: Any = [
        {"type": "input_audio", "input_audio": {"data": wav(TONE), "format": "wav"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png(PICTURE)}"}},
        {"type": "text", "text": question.text},
    ]
    url = f"{services.gateway.url}/v1"
    text, sound = "", b""
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model=f"{model.family}-tiny",
            messages=[{"role": "user", "content": content}],
            modalities=["text", "audio"],
            audio={"voice": VOICES[model.family], "format": "pcm16"},
            temperature=0,
            max_tokens=TOKENS,
            seed=question.seed,
            stream=True,
        )
        async for event in stream:
            delta: Any = event.choices[0].delta
            text += delta.content or ""
            sound += base64.b64decode(getattr(delta.audio, "data", None) or "")

    said = model.answer(question)
    assert text == said.text
    samples = np.frombuffer(sound, np.int16)
    assert samples.shape == said.samples.shape
    loudest = np.iinfo(np.int16).max
    off = np.abs(samples / loudest - said.samples.clip(-1, 1)).max()
    assert off <= 0.5 / loudest + ROUNDING


@pytest.mark.parametrize("transport", ["TCP", "Stream"])
async def test_every_transport_carries_the_same(
    model: Model, transport: str, tmp_path: Path
) -> None:
    """Shared memory is what the other tests go over."""
    question = Question(text=LONG, seed=10)

    with deployed(plan_for(model, f"transfer.transport={transport}"), tmp_path) as deployment:
        async with exact_requests(deployment) as requests:
            answer = await answer_to(requests, question)
        used = {
            peer.transport
            for replica in deployment.replicas.values()
            for peer in replica.describe().tensor_peers
        }

    check_same(answer, model.answer(question), rounding=ROUNDING)
    assert len(used) == 1
