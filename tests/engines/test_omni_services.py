"""Qwen3-Omni as three services says what it says as one model, over every transport."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from fakes.deployment import SIMULATED_OMNI, Deployment, deployed, resolved_plan
from fakes.engine_io import conversation, user_message
from fakes.exact_requests import ExactAnswer, ExactRequests, exact_requests, tensor_payload
from fakes.qwen3_omni_reference import Reference, Spoken, reference
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
LONG = " ".join(f"number {count}" for count in range(150))
"""A prompt whose hidden states do not ride within a message."""
ROUNDING = 1e-5
"""Of full scale: how far samples decoded in chunks may be from those decoded at once, since oneDNN's
convolutions choose their kernels by length; see docs/explanation/exactness.md."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The whole model."""
    return reference(tmp_path_factory.mktemp("model"))


def plan_for(model: Reference, *overrides: str) -> PipelinePlan:
    """The shipped pipeline with this model."""
    return resolved_plan(
        f"model.source={model.folder.as_uri()}",
        f"stages.talker.engineArgs.max_frames={FRAMES}",
        *overrides,
        file=SIMULATED_OMNI.with_name("qwen3-omni-tiny.yaml"),
    )


@pytest.fixture(scope="module")
def services(model: Reference, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Thinker, talker and vocoder, a process each."""
    with deployed(plan_for(model), tmp_path_factory.mktemp("services")) as deployment:
        yield deployment
        assert deployment.idle


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def streaming(services: Deployment) -> AsyncIterator[ExactRequests]:
    """Requests over edges that stream."""
    async with exact_requests(services) as requests:
        yield requests


def question(text: str, *parts: AudioPart | ImagePart) -> Payload:
    """One message of a user."""
    message = Message(role="user", parts=(*parts, TextPart(text=text)))
    return Payload(kind=PayloadKind.CONVERSATION, content=Conversation(messages=(message,)))


async def said(requests: ExactRequests, text: str, *, seed: int) -> ExactAnswer:
    """What the services say to a text."""
    return await requests.ask(
        {"conversation": (conversation(user_message(text)),)},
        BOTH,
        Parameters(max_tokens=TOKENS, temperature=0, seed=seed),
    )


def check_same(answer: ExactAnswer, spoken: Spoken, *, rounding: float) -> None:
    """Both say the same, sample for sample."""
    assert answer.text == spoken.text
    assert answer.rates == {24000}
    assert answer.audio.shape == spoken.samples.shape
    assert np.abs(answer.audio - spoken.samples).max() <= rounding
    assert np.abs(spoken.samples).max() > 100 * ROUNDING


@pytest.mark.parametrize(("text", "seed"), [("Hello there.", 1), ("What is a stage?", 2)])
async def test_streamed_services_say_what_the_model_says(
    model: Reference, streaming: ExactRequests, text: str, seed: int
) -> None:
    spoken = model.answer(text, seed=seed, tokens=TOKENS, frames=FRAMES)

    answer = await said(streaming, text, seed=seed)

    check_same(answer, spoken, rounding=ROUNDING)
    assert len(answer.pieces[Modality.AUDIO]) > 1


async def test_unstreamed_services_are_equal_bit_for_bit(
    model: Reference, services: Deployment
) -> None:
    spoken = model.answer("Hello there.", seed=3, tokens=TOKENS, frames=FRAMES)

    async with exact_requests(services, plan_for(model, "streaming.chunked=false")) as full:
        answer = await said(full, "Hello there.", seed=3)

    check_same(answer, spoken, rounding=0)


async def test_four_at_once_say_what_each_says_alone(
    model: Reference, streaming: ExactRequests
) -> None:
    questions = [("Hello there.", 4), ("A", 5), ("What is a stage?", 6), (LONG, 7)]
    spoken = [
        model.answer(text, seed=seed, tokens=TOKENS, frames=FRAMES) for text, seed in questions
    ]

    answers = await asyncio.gather(*(said(streaming, text, seed=seed) for text, seed in questions))

    for answer, alone in zip(answers, spoken, strict=True):
        check_same(answer, alone, rounding=ROUNDING)


async def test_a_recording_is_heard_as_by_the_model(
    model: Reference, streaming: ExactRequests
) -> None:
    audio = (0.3 * np.sin(np.arange(16000) * 0.07)).astype(np.float32)
    spoken = model.answer("What was that?", seed=8, tokens=TOKENS, frames=FRAMES, audio=audio)

    answer = await streaming.ask(
        {
            "conversation": (question("What was that?", AudioPart(index=0)),),
            "audio": (tensor_payload(audio, PayloadKind.WAVEFORM, rate_hz=16000),),
        },
        BOTH,
        Parameters(max_tokens=TOKENS, temperature=0, seed=8),
    )

    check_same(answer, spoken, rounding=ROUNDING)


async def test_a_picture_is_seen_as_by_the_model(
    model: Reference, streaming: ExactRequests
) -> None:
    image = np.random.default_rng(1).integers(0, 255, (96, 64, 3), dtype=np.uint8)
    spoken = model.answer("What is it?", seed=9, tokens=TOKENS, frames=FRAMES, image=image)

    answer = await streaming.ask(
        {
            "conversation": (question("What is it?", ImagePart(index=0)),),
            "image": (tensor_payload(image, PayloadKind.IMAGE),),
        },
        BOTH,
        Parameters(max_tokens=TOKENS, temperature=0, seed=9),
    )

    check_same(answer, spoken, rounding=ROUNDING)


@pytest.mark.parametrize("transport", ["TCP", "Stream"])
async def test_every_transport_carries_the_same(
    model: Reference, transport: str, tmp_path: Path
) -> None:
    """Shared memory is what the other tests go over."""
    spoken = model.answer(LONG, seed=10, tokens=TOKENS, frames=FRAMES)
    plan = plan_for(model, f"transfer.transport={transport}")

    with deployed(plan, tmp_path) as deployment:
        async with exact_requests(deployment) as requests:
            answer = await said(requests, LONG, seed=10)
        used = {
            peer.transport
            for replica in deployment.replicas.values()
            for peer in replica.describe().tensor_peers
        }

    check_same(answer, spoken, rounding=ROUNDING)
    assert len(used) == 1
