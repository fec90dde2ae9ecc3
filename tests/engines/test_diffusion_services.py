"""Six families of diffusion models as three services each make what diffusers makes in one process."""

import asyncio
import base64
import io
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio
from PIL import Image

from fakes.deployment import SIMULATED_OMNI, Deployment, deployed, resolved_plan
from fakes.diffusion import TINY, TinyFamily
from fakes.engine_io import conversation, user_message
from fakes.exact_requests import ExactRequests, exact_requests
from fakes.own_process import OwnProcess
from omnistage_common.payloads import Parameters, PayloadKind
from omnistage_common.pipeline.plan import Modality

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODALITIES = {
    PayloadKind.IMAGE: Modality.IMAGE,
    PayloadKind.VIDEO: Modality.VIDEO,
    PayloadKind.WAVEFORM: Modality.AUDIO,
}
PROMPTS = ("a cat on the moon", "rain", "a lighthouse at dawn", "the sea, seen from afar")


class Studio:
    """One family: diffusers' own pipeline here, and ours as services."""

    def __init__(self, family: TinyFamily, services: Deployment, requests: ExactRequests) -> None:
        self.family = family
        self.services = services
        self.requests = requests
        self.process = OwnProcess("fakes.diffusers_reference", "DiffusersReference", family.name)

    @property
    def modality(self) -> Modality:
        """What it makes."""
        return MODALITIES[self.family.kind]

    def expected(self, prompt: str, seed: int) -> Any:
        """What diffusers makes, as an array."""
        return self.process.call("made", prompt, seed)

    async def made(self, prompt: str, seed: int) -> tuple[Any, list[tuple[int, int]]]:
        """What the services make, and the steps that the denoiser told."""
        answer = await self.requests.ask(
            {"conversation": (conversation(user_message(prompt)),)},
            frozenset({self.modality}),
            Parameters(seed=seed, diffusion=self.family.asked),
        )
        (result,) = answer.pieces[self.modality]
        steps = [(done, total) for stage, done, total in answer.steps if stage == "denoiser"]
        return result, steps


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=TINY)
async def studio(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Studio]:
    family = TINY[request.param]
    plan = resolved_plan(file=SIMULATED_OMNI.with_name(f"{family.name}-tiny.yaml"))
    with deployed(plan, tmp_path_factory.mktemp("services")) as services:
        async with exact_requests(services) as requests:
            studio = Studio(family, services, requests)
            yield studio
            studio.process.close()
        assert services.idle


async def test_split_services_make_what_the_pipeline_makes(studio: Studio) -> None:
    result, steps = await studio.made(PROMPTS[0], seed=11)

    np.testing.assert_array_equal(result, studio.expected(PROMPTS[0], 11))
    assert len(np.unique(result)) > 3
    assert steps
    assert steps[-1] == (2, 2)
    assert steps == sorted(steps)


async def test_four_at_once_make_what_each_makes_alone(studio: Studio) -> None:
    results = await asyncio.gather(
        *(studio.made(prompt, seed) for seed, prompt in enumerate(PROMPTS))
    )

    for seed, (result, _) in enumerate(results):
        np.testing.assert_array_equal(result, studio.expected(PROMPTS[seed], seed))


async def test_the_official_client_gets_it(studio: Studio) -> None:
    family, asked = studio.family, studio.family.asked
    url = f"{studio.services.gateway.url}/v1"
    model = f"{family.name}-tiny"
    extra: dict[str, Any] = {"seed": 5, "num_inference_steps": asked.steps}
    for name in ("guidance_scale", "true_cfg_scale"):
        if getattr(asked, name) is not None:
            extra[name] = getattr(asked, name)
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        if family.kind is PayloadKind.IMAGE:
            size: Any = f"{asked.width}x{asked.height}"
            images = await client.images.generate(
                model=model, prompt=PROMPTS[1], size=size, extra_body=extra
            )
            assert images.data is not None
            picture = Image.open(io.BytesIO(base64.b64decode(images.data[0].b64_json or "")))
            np.testing.assert_array_equal(np.asarray(picture), studio.expected(PROMPTS[1], 5))
            return
        answer = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": PROMPTS[1]}], extra_body=extra
        )
    message = answer.choices[0].message
    if family.kind is PayloadKind.WAVEFORM:
        assert message.audio is not None
        assert base64.b64decode(message.audio.data).startswith(b"RIFF")
    else:
        # The client's type says text; the answer's parts come through as they are.
        content: Any = message.content
        (part,) = content
        assert part["video_url"]["url"].startswith("data:video/mp4;base64,")
