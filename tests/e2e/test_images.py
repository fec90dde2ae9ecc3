"""Images and videos into and out of real processes, by the official client."""

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import av
import httpx
import openai
import pytest
from PIL import Image

from fakes.deployment import Deploy, Deployment, deployed, plan_from_text, within

PIPELINE: Final = """\
apiVersion: omnistage.io/v1alpha1
kind: InferencePipeline
metadata: {{name: painter}}
spec:
  topology:
    stages:
      - name: encoder
        execution: Generation
        consumes:
          - {{name: conversation, kind: conversation}}
          - {{name: image, kind: image, optional: true}}
        produces:
          - {{name: prompt_embeds, kind: embeddings}}
        defaults:
          engine: simulated
          engineArgs:
            outputs:
              prompt_embeds: {{element_type: float32, shape: [77, 768]}}
      - name: dit
        execution: Diffusion
        produces:
          - {{name: image, kind: image}}
          - {{name: video, kind: video}}
        defaults:
          engine: simulated
          engineArgs:
            steps: 4
            step_seconds: {step_seconds}
            outputs:
              image: {{element_type: uint8, shape: [384, 512, 3]}}
              video: {{element_type: uint8, shape: [9, 96, 128, 3], rate_hz: 8}}
    edges:
      - {{from: encoder, to: dit, output: prompt_embeds, mode: Full}}
    outputs:
      - {{stage: dit, output: image, modality: image}}
      - {{stage: dit, output: video, modality: video}}
  timeouts: {{request: 30s, drain: 5s}}
"""
MODEL: Final = "painter"
SIZE: Final = (512, 384)


def pipeline(*, step_seconds: float) -> str:
    """An encoder that costs nothing and a denoiser of four steps."""
    return PIPELINE.format(step_seconds=step_seconds)


@pytest.fixture(scope="module")
def painter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("painter")
    with deployed(plan_from_text(pipeline(step_seconds=0.05)), folder) as deployment:
        yield deployment


@pytest.fixture
async def client(painter: Deployment) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{painter.gateway.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as opened:
        yield opened
    assert within(1.0, lambda: painter.idle), painter.held()


def shown(encoded: str | None) -> Image.Image:
    """An image as base64 or as a `data:` URI."""
    assert encoded is not None
    return Image.open(io.BytesIO(base64.b64decode(encoded.rpartition(",")[2], validate=True)))


def photograph(size: tuple[int, int] = (640, 480)) -> dict[str, Any]:
    """A part of a message."""
    target = io.BytesIO()
    Image.radial_gradient("L").resize(size).save(target, "JPEG")
    url = f"data:image/jpeg;base64,{base64.b64encode(target.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def look(*parts: dict[str, Any], **fields: Any) -> Any:
    """A chat about images, answered with one."""
    content = [{"type": "text", "text": "Make it blue."}, *parts]
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "modalities": ["image"], **fields}


async def test_a_prompt_becomes_an_image(client: openai.AsyncOpenAI) -> None:
    answer = await client.images.generate(model=MODEL, prompt="a cat", size="512x384")

    assert answer.data is not None
    (item,) = answer.data
    with shown(item.b64_json) as image:
        assert (image.format, image.size) == ("PNG", SIZE)
    assert (answer.output_format, answer.size) == ("png", "512x384")
    report = (answer.model_extra or {})["omnistage"]
    assert [stage["name"] for stage in report["stages"]] == ["encoder", "dit"]


async def test_every_parameter_of_an_image_is_taken(client: openai.AsyncOpenAI) -> None:
    answer = await client.images.generate(
        model=MODEL,
        prompt="a cat",
        n=1,
        size="auto",
        quality="auto",
        background="auto",
        moderation="low",
        user="me",
        response_format="b64_json",
        output_format="webp",
        output_compression=70,
        extra_body={
            "negative_prompt": "dogs",
            "num_inference_steps": 3,
            "guidance_scale": 4.0,
            "true_cfg_scale": 2.0,
            "seed": 7,
        },
    )

    assert answer.data is not None
    with shown(answer.data[0].b64_json) as image:
        assert image.format == "WEBP"


async def test_a_stream_of_an_image_ends_with_it(client: openai.AsyncOpenAI) -> None:
    stream = await client.images.generate(model=MODEL, prompt="a cat", stream=True)
    events = [event async for event in stream]

    completed = events[-1]
    assert completed.type == "image_generation.completed"
    with shown(completed.b64_json) as image:
        assert image.size == SIZE
    assert (completed.output_format, completed.usage.total_tokens) == ("png", 2)


async def test_a_chat_takes_images_and_answers_with_one(client: openai.AsyncOpenAI) -> None:
    answer: Any = await client.chat.completions.create(**look(photograph(), photograph((64, 64))))

    (part,) = answer.choices[0].message.content
    with shown(part["image_url"]["url"]) as image:
        assert image.size == SIZE


async def test_a_streamed_chat_has_a_delta_with_the_image(client: openai.AsyncOpenAI) -> None:
    stream: Any = await client.chat.completions.create(**look(photograph(), stream=True))
    contents = [chunk.choices[0].delta.content async for chunk in stream]

    (parts,) = [content for content in contents if isinstance(content, list)]
    with shown(parts[0]["image_url"]["url"]) as image:
        assert image.size == SIZE


async def test_a_video_comes_as_mp4(client: openai.AsyncOpenAI) -> None:
    answer: Any = await client.chat.completions.create(
        **look(modalities=["video"]), extra_body={"num_frames": 9, "num_inference_steps": 2}
    )

    (part,) = answer.choices[0].message.content
    data = base64.b64decode(part["video_url"]["url"].partition(",")[2], validate=True)
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height, stream.average_rate) == (128, 96, 8)
        assert len(list(container.decode(stream))) == 9


async def test_a_model_that_makes_several_things_asks_which(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(**look(modalities=None))

    assert refused.value.param == "modalities"
    assert "image, video" in refused.value.message


def bomb() -> dict[str, Any]:
    """A small image that unfolds to 300 million pixels."""
    target = io.BytesIO()
    Image.new("1", (20_000, 15_000)).save(target, "PNG")
    assert len(target.getvalue()) < 100_000
    url = f"data:image/png;base64,{base64.b64encode(target.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}, "not fetched"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "not an image"),
        (bomb(), "20000x15000 pixels"),
    ],
    ids=["url", "garbage", "bomb"],
)
async def test_an_image_that_cannot_be_taken_is_named(
    client: openai.AsyncOpenAI, part: dict[str, Any], words: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(**look(photograph(), part))

    assert refused.value.param == "messages[0].content[2].image_url.url"
    assert words in refused.value.message


async def test_a_deadline_ends_an_image_on_every_stage(
    client: openai.AsyncOpenAI, painter: Deployment
) -> None:
    with pytest.raises(openai.APIStatusError) as late:
        await client.images.generate(
            model=MODEL, prompt="a cat", extra_headers={"X-Request-Timeout": "0.1"}
        )

    assert late.value.status_code == 504
    assert within(1.0, lambda: painter.idle), painter.held()


async def test_a_client_that_goes_away_ends_its_image(deploy: Deploy) -> None:
    slow = deploy(plan_from_text(pipeline(step_seconds=5)))
    prompt = {"model": MODEL, "prompt": "a cat"}
    asks = [
        ("/v1/chat/completions", look(photograph())),
        ("/v1/chat/completions", look(photograph(), stream=True)),
        ("/v1/images/generations", prompt),
        ("/v1/images/generations", prompt | {"stream": True}),
    ]
    async with httpx.AsyncClient(timeout=30) as http:
        for path, body in asks:
            asked = asyncio.create_task(http.post(slow.gateway.url + path, json=body))
            assert await asyncio.to_thread(within, 10.0, lambda: slow.held()["running"] == 1)
            asked.cancel()
            assert await asyncio.to_thread(within, 1.0, lambda: slow.idle), slow.held()


async def test_many_images_at_once_leave_nothing(painter: Deployment) -> None:
    async def ask(turn: int) -> int:
        body = look(photograph(), stream=bool(turn % 2))
        headers = {"X-Request-Timeout": "0.15"} if turn % 5 == 0 else {}
        url = f"{painter.gateway.url}/v1/chat/completions"
        answer = await http.post(url, json=body, headers=headers)
        return answer.status_code

    async with httpx.AsyncClient(timeout=30) as http:
        statuses = await asyncio.gather(*map(ask, range(40)))

    assert set(statuses) == {200, 504}
    assert statuses.count(200) >= 30
    assert within(1.0, lambda: painter.idle), painter.held()
    assert painter.gateway.metric("omnistage_gateway_in_flight") == 0


async def test_models_say_what_they_take_and_make(client: openai.AsyncOpenAI) -> None:
    model = await client.models.retrieve(MODEL)

    assert (model.model_extra or {})["omnistage"] == {
        "takes": ["conversation", "image"],
        "makes": ["image", "video"],
    }


def test_the_api_describes_its_new_endpoints(painter: Deployment) -> None:
    status, text = painter.gateway.get("/openapi.json")

    assert status == 200
    assert {"/v1/images/generations", "/v1/audio/speech"} < json.loads(text)["paths"].keys()
