"""`POST /v1/images/generations` without a network: prompts, images, steps, refusals."""

import base64
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from msgspec.structs import replace
from PIL import Image
from starlette.types import Message as AsgiMessage

from fakes.asked_gateway import AskedGateway, image_output
from fakes.frames import text_output
from fakes.graphs import graph_plan
from omnistage_common.errors import EngineFailed, InvalidRequest
from omnistage_common.links.frames import Cancel, Delivery
from omnistage_common.payloads import Conversation, DiffusionParameters, TextPart
from omnistage_common.pipeline.plan import Execution, PipelinePlan

PATH: Final = "/v1/images/generations"


def painting(**fields: Any) -> PipelinePlan:
    """One stage that denoises images."""
    plan = graph_plan({"dit": "conversation"}, outputs={"dit.image": "image"}, **fields)
    return replace(plan, stages=(replace(plan.stages[0], execution=Execution.DIFFUSION),))


@pytest.fixture
def gateway(tmp_path: Path) -> AskedGateway:
    return AskedGateway(painting(), {"dit": [image_output()]}, tmp_path)


@pytest.fixture
async def http(gateway: AskedGateway) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway.client() as client:
        yield client


def prompt(**fields: Any) -> dict[str, Any]:
    return {"model": "graph", "prompt": "a cat", **fields}


def seen(b64: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(b64, validate=True)))


def events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data")]
    return [json.loads(line) for line in lines]


async def test_a_prompt_is_answered_with_an_image(http: httpx.AsyncClient) -> None:
    answer = await http.post(PATH, json=prompt(), headers={"x-request-id": "mine"})

    body = answer.json()
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] == "mine"
    (item,) = body["data"]
    with seen(item["b64_json"]) as image:
        assert (image.format, image.size) == ("PNG", (16, 8))
    assert (body["output_format"], body["size"]) == ("png", "16x8")
    assert body["omnistage"]["request_id"] == "mine"
    assert [stage["name"] for stage in body["omnistage"]["stages"]] == ["dit"]
    assert "usage" not in body


async def test_the_prompt_and_how_to_denoise_reach_the_stage(
    http: httpx.AsyncClient, gateway: AskedGateway
) -> None:
    await http.post(PATH, json=prompt(size="64x32", num_inference_steps=4, seed=3))

    (opened,) = gateway["dit"].opens
    (given,) = opened.inputs
    assert given.name == "conversation"
    assert isinstance(given.payload.content, Conversation)
    (message,) = given.payload.content.messages
    assert (message.role, message.parts) == ("user", (TextPart(text="a cat"),))
    assert opened.parameters.seed == 3
    assert opened.parameters.diffusion == DiffusionParameters(width=64, height=32, steps=4)
    assert opened.delivery is Delivery.FINAL


@pytest.mark.parametrize("output_format", ["jpeg", "webp"])
async def test_images_come_in_the_format_that_was_asked_for(
    http: httpx.AsyncClient, output_format: str
) -> None:
    answer = await http.post(PATH, json=prompt(output_format=output_format, output_compression=90))

    with seen(answer.json()["data"][0]["b64_json"]) as image:
        assert image.format == output_format.upper()


async def test_several_images_come_in_the_order_of_their_items(tmp_path: Path) -> None:
    made = [image_output(30, index=2), image_output(10, index=0), image_output(20, index=1)]
    gateway = AskedGateway(painting(), {"dit": made}, tmp_path)
    async with gateway.client() as http:
        answer = await http.post(PATH, json=prompt(n=3))

    images = [seen(item["b64_json"]) for item in answer.json()["data"]]
    assert [image.getpixel((0, 0)) for image in images] == [(10,) * 3, (20,) * 3, (30,) * 3]
    diffusion = gateway["dit"].opens[0].parameters.diffusion
    assert diffusion is not None
    assert diffusion.count == 3


async def test_fewer_images_than_were_asked_for_are_an_error(http: httpx.AsyncClient) -> None:
    answer = await http.post(PATH, json=prompt(n=2))

    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (500, "missing_output")
    assert "asked for 2 images, the stages made 1" in error["message"]


async def test_tokens_of_the_prompt_are_reported_where_they_are_counted(
    http: httpx.AsyncClient, gateway: AskedGateway
) -> None:
    gateway["dit"].input_tokens = 7

    answer = await http.post(PATH, json=prompt())

    assert answer.json()["usage"]["input_tokens"] == 7


async def test_a_stream_tells_the_steps_and_then_the_images(
    http: httpx.AsyncClient, gateway: AskedGateway
) -> None:
    gateway["dit"].steps = ((1, 2), (2, 2))

    answer = await http.post(PATH, json=prompt(stream=True))

    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    step, completed = events(answer.text)
    assert step == {"type": "image_generation.progress", "stage": "dit", "done": 2, "total": 2}
    assert completed["type"] == "image_generation.completed"
    with seen(completed["b64_json"]) as image:
        assert image.size == (16, 8)
    assert completed["omnistage"]["stages"][0]["name"] == "dit"
    assert gateway["dit"].opens[0].delivery is Delivery.DELTAS


async def test_a_stream_that_fails_before_its_first_step_has_a_status(
    http: httpx.AsyncClient, gateway: AskedGateway
) -> None:
    gateway["dit"].outputs = (EngineFailed("no memory"),)

    answer = await http.post(PATH, json=prompt(stream=True))

    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_failed")


async def test_a_stream_that_fails_later_ends_with_the_error(
    http: httpx.AsyncClient, gateway: AskedGateway
) -> None:
    gateway["dit"].steps = ((1, 2),)
    gateway["dit"].outputs = (EngineFailed("no memory"),)
    gateway["dit"].slow = True

    answer = await http.post(PATH, json=prompt(stream=True))

    step, failed = events(answer.text)
    assert (answer.status_code, step["done"]) == (200, 1)
    assert failed["error"]["code"] == "engine_failed"


async def test_what_a_stage_refuses_is_named_as_the_client_wrote_it(
    http: httpx.AsyncClient, gateway: AskedGateway
) -> None:
    for field, named in [
        ("width", "size"),
        ("messages", "prompt"),
        ("steps", "num_inference_steps"),
    ]:
        gateway["dit"].outputs = (InvalidRequest("not that", field=field),)

        answer = await http.post(PATH, json=prompt())

        assert (answer.status_code, answer.json()["error"]["param"]) == (400, named)


async def test_a_tensor_that_is_no_image_is_the_stages_fault(
    http: httpx.AsyncClient, gateway: AskedGateway
) -> None:
    gateway["dit"].outputs = (image_output(height=0),)

    answer = await http.post(PATH, json=prompt())

    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (500, "engine_failed")
    assert "[height, width, 3]" in error["message"]


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "gpt-9"}, 404, "model"),
        ({"response_format": "url"}, 400, "response_format"),
        ({"size": "7x7"}, 400, "size"),
        ({"prompt": "x" * (1 << 20)}, 413, "body"),
    ],
)
async def test_a_refusal_names_the_field(
    http: httpx.AsyncClient, fields: dict[str, Any], status: int, param: str
) -> None:
    answer = await http.post(PATH, json=prompt(**fields))

    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


@pytest.mark.parametrize(
    ("stages", "outputs"),
    [
        ({"thinker": "conversation"}, {"thinker.text": "text"}),
        ({"eye": "image"}, {"eye.image": "image"}),
    ],
)
async def test_a_model_that_makes_no_images_from_prompts_says_where_to_go(
    tmp_path: Path, stages: dict[str, str], outputs: dict[str, str]
) -> None:
    plan = graph_plan(stages, outputs=outputs)
    async with AskedGateway(plan, {next(iter(stages)): []}, tmp_path).client() as http:
        answer = await http.post(PATH, json=prompt())

    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "unsupported_modality")
    assert error["param"] == "model"
    assert "POST /v1/chat/completions" in error["message"]


async def test_a_model_that_does_not_denoise_refuses_what_is_about_it(tmp_path: Path) -> None:
    plan = graph_plan({"painter": "conversation"}, outputs={"painter.image": "image"})
    gateway = AskedGateway(plan, {"painter": [image_output()]}, tmp_path)
    async with gateway.client() as http:
        plain = await http.post(PATH, json=prompt())
        refused = await http.post(PATH, json=prompt(num_inference_steps=5))

    assert plain.status_code == 200
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "num_inference_steps")
    assert len(gateway["painter"].opens) == 1


async def test_text_that_the_model_writes_as_well_is_not_asked_for(tmp_path: Path) -> None:
    outputs = {"omni.text": "text", "omni.image": "image"}
    plan = graph_plan({"omni": "conversation"}, outputs=outputs)
    made = [text_output("Here."), image_output()]
    async with AskedGateway(plan, {"omni": made}, tmp_path).client() as http:
        answer = await http.post(PATH, json=prompt())

    assert len(answer.json()["data"]) == 1


async def test_a_passed_deadline_is_a_504_and_nothing_is_left(
    http: httpx.AsyncClient, gateway: AskedGateway
) -> None:
    gateway["dit"].answers = False

    answer = await http.post(PATH, json=prompt(), headers={"x-request-timeout": "0.05"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert isinstance(gateway["dit"].closes[0], Cancel)


async def test_a_client_that_goes_away_cancels_its_images(gateway: AskedGateway) -> None:
    gateway["dit"].answers = False
    body = {"type": "http.request", "body": json.dumps(prompt()).encode()}
    messages: list[AsgiMessage] = [body, {"type": "http.disconnect"}]
    sent: list[AsgiMessage] = []

    async def receive() -> AsgiMessage:
        return messages.pop(0)

    async def send(message: AsgiMessage) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}
    await gateway.app(scope, receive, send)

    assert sent == []
    assert isinstance(gateway["dit"].closes[0], Cancel)
    assert gateway["dit"].outstanding == 0
    gateway.plane.close()
