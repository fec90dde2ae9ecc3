"""Images into a chat, and images, videos and sound out of it, without a network."""

import asyncio
import base64
import io
import json
from pathlib import Path
from typing import Any, Final

import av
import httpx
import numpy as np
import pytest
import soundfile
from msgspec.structs import replace
from PIL import Image

from fakes.asked_gateway import (
    MAX_REQUESTS,
    AskedGateway,
    image_output,
    sound_output,
    video_output,
)
from fakes.frames import text_output
from fakes.graphs import graph_plan
from omnistage_common.errors import EngineFailed, InvalidRequest
from omnistage_common.payloads import (
    Conversation,
    ImagePart,
    PayloadKind,
    Tensor,
    TensorRef,
    TextPart,
)
from omnistage_common.pipeline.plan import Execution, PipelinePlan

CHAT: Final = "/v1/chat/completions"
EYE: Final = graph_plan({"eye": "conversation image?"}, outputs={"eye.text": "text"})


def making(*outputs: str, denoises: bool = False) -> PipelinePlan:
    """One stage that makes all of that."""
    modalities = {"text": "text", "speech": "audio", "image": "image", "video": "video"}
    plan = graph_plan(
        {"omni": "conversation"}, outputs={f"omni.{name}": modalities[name] for name in outputs}
    )
    if not denoises:
        return plan
    return replace(plan, stages=(replace(plan.stages[0], execution=Execution.DIFFUSION),))


def png(colour: str = "red", size: tuple[int, int] = (4, 2)) -> str:
    """A `data:` URI."""
    target = io.BytesIO()
    Image.new("RGB", size, colour).save(target, "PNG")
    return f"data:image/png;base64,{base64.b64encode(target.getvalue()).decode()}"


def look(*urls: str, **fields: Any) -> dict[str, Any]:
    """A question about images."""
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    parts.append({"type": "text", "text": "What is it?"})
    return {"model": "graph", "messages": [{"role": "user", "content": parts}], **fields}


def say(**fields: Any) -> dict[str, Any]:
    return {"model": "graph", "messages": [{"role": "user", "content": "hello"}], **fields}


def content_of(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def file_in(part: dict[str, Any]) -> bytes:
    """What an image or video part holds."""
    url: str = part[part["type"]]["url"]
    return base64.b64decode(url.partition(",")[2], validate=True)


def chunks(answer: httpx.Response) -> list[Any]:
    lines = answer.text.strip().split("\n\n")
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_images_reach_the_stage_as_pixels_in_the_order_of_the_conversation(
    tmp_path: Path,
) -> None:
    gateway = AskedGateway(EYE, {"eye": [text_output("A flag.")]}, tmp_path)
    async with gateway.client() as http:
        answer = await http.post(CHAT, json=look(png("red"), png("blue", (2, 6))))

    assert content_of(answer) == "A flag."
    conversation, *images = gateway["eye"].opens[0].inputs
    assert isinstance(conversation.payload.content, Conversation)
    assert conversation.payload.content.messages[0].parts == (
        ImagePart(index=0),
        ImagePart(index=1),
        TextPart(text="What is it?"),
    )
    assert [(each.name, each.index) for each in images] == [("image", 0), ("image", 1)]
    assert {each.payload.kind for each in images} == {PayloadKind.IMAGE}
    red, blue = (each.payload.content for each in images)
    assert isinstance(red, Tensor)
    assert isinstance(blue, Tensor)
    assert (red.header.shape, bytes(red.data)) == ((2, 4, 3), b"\xff\0\0" * 8)
    assert (blue.header.shape, bytes(blue.data)) == ((6, 2, 3), b"\0\0\xff" * 12)


async def test_a_large_image_lies_in_the_slab_until_the_request_ends(tmp_path: Path) -> None:
    gateway = AskedGateway(EYE, {"eye": [text_output()]}, tmp_path)
    async with gateway.client() as http:
        await http.post(CHAT, json=look(png(size=(300, 200))))
        _, image = gateway["eye"].opens[0].inputs
        assert isinstance(image.payload.content, TensorRef)
        assert image.payload.content.length == 300 * 200 * 3
        assert gateway.plane.statistics().leases == 0


async def test_nothing_is_left_of_images_when_a_later_one_is_refused(tmp_path: Path) -> None:
    gateway = AskedGateway(EYE, {"eye": [text_output()]}, tmp_path)
    async with gateway.client() as http:
        body = look(png(size=(300, 200)), "data:image/png;base64,AAAA")
        answer = await http.post(CHAT, json=body)

    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_request")
    assert error["param"] == "messages[0].content[1].image_url.url"
    assert gateway["eye"].opens == []


async def test_pixels_are_counted_over_all_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnistage_gateway.endpoints.inputs.MAX_PIXELS", 100)
    gateway = AskedGateway(EYE, {"eye": [text_output()]}, tmp_path)
    async with gateway.client() as http:
        fits = await http.post(CHAT, json=look(png(size=(10, 5)), png(size=(5, 10))))
        refused = await http.post(CHAT, json=look(png(size=(10, 5)), png(size=(5, 11))))

    assert fits.status_code == 200
    assert refused.json()["error"]["param"] == "messages[0].content[1].image_url.url"
    assert "50 of them are left" in refused.json()["error"]["message"]


async def test_requests_whose_images_do_not_fit_together_wait_for_one_another(
    tmp_path: Path,
) -> None:
    gateway = AskedGateway(EYE, {"eye": [text_output()]}, tmp_path)
    images = [png(size=(300, 200))] * 5
    assert gateway.plane.statistics().slab_bytes < 2 * 5 * 300 * 200 * 3
    async with gateway.client() as http:
        answers = await asyncio.gather(
            *(http.post(CHAT, json=look(*images)) for _ in range(MAX_REQUESTS))
        )

    assert {answer.status_code for answer in answers} == {200}


async def test_a_model_that_takes_no_images_says_so(tmp_path: Path) -> None:
    gateway = AskedGateway(making("text"), {"omni": [text_output()]}, tmp_path)
    async with gateway.client() as http:
        answer = await http.post(CHAT, json=look(png()))

    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "unsupported_modality")
    assert "image" in error["message"]


async def test_the_only_thing_that_a_model_makes_is_what_is_meant(tmp_path: Path) -> None:
    gateway = AskedGateway(making("image"), {"omni": [image_output(7)]}, tmp_path)
    async with gateway.client() as http:
        answer = await http.post(CHAT, json=say())

    (part,) = content_of(answer)
    assert part["type"] == "image_url"
    with Image.open(io.BytesIO(file_in(part))) as image:
        assert (image.format, image.size, image.getpixel((0, 0))) == ("PNG", (16, 8), (7, 7, 7))


async def test_sound_without_a_word_comes_as_wav_unless_the_client_says_otherwise(
    tmp_path: Path,
) -> None:
    gateway = AskedGateway(making("speech"), {"omni": [sound_output(240)]}, tmp_path)
    async with gateway.client() as http:
        implied = await http.post(CHAT, json=say())
        named = await http.post(CHAT, json=say(modalities=["audio"], audio={"format": "flac"}))

    for answer, container in [(implied, "WAV"), (named, "FLAC")]:
        audio = answer.json()["choices"][0]["message"]["audio"]
        with soundfile.SoundFile(io.BytesIO(base64.b64decode(audio["data"]))) as file:
            assert (file.format, file.frames) == (container, 240)
        assert (content_of(answer), audio["transcript"]) == ("", "")


async def test_text_stands_before_images_and_videos(tmp_path: Path) -> None:
    made = [
        image_output(2, index=1),
        text_output("Here "),
        image_output(1, index=0),
        video_output(2),
        text_output("it is."),
        video_output(3),
    ]
    gateway = AskedGateway(making("text", "image", "video"), {"omni": made}, tmp_path)
    async with gateway.client() as http:
        answer = await http.post(CHAT, json=say(modalities=["text", "image", "video"]))

    text, first, second, video = content_of(answer)
    assert text == {"type": "text", "text": "Here it is."}
    pixels = [Image.open(io.BytesIO(file_in(part))).getpixel((0, 0)) for part in (first, second)]
    assert pixels == [(1, 1, 1), (2, 2, 2)]
    assert video["video_url"]["url"].startswith("data:video/mp4;base64,")
    with av.open(io.BytesIO(file_in(video))) as container:
        assert len(list(container.decode(video=0))) == 5


async def test_text_alone_of_a_model_that_could_do_more_is_a_string(tmp_path: Path) -> None:
    made = [text_output("Words."), image_output()]
    gateway = AskedGateway(making("text", "image"), {"omni": made}, tmp_path)
    async with gateway.client() as http:
        assert content_of(await http.post(CHAT, json=say())) == "Words."


async def test_a_stream_has_one_delta_for_each_image_and_steps_before(tmp_path: Path) -> None:
    made = [image_output(1), image_output(2, index=1), video_output()]
    gateway = AskedGateway(making("image", "video", denoises=True), {"omni": made}, tmp_path)
    gateway["omni"].steps = ((1, 3),)
    async with gateway.client() as http:
        answer = await http.post(CHAT, json=say(stream=True, modalities=["image", "video"]))

    role, step, *media, end = chunks(answer)
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert step["omnistage"] == {"progress": {"stage": "omni", "done": 1, "total": 3}}
    parts = [part for chunk in media for part in chunk["choices"][0]["delta"]["content"]]
    assert [part["type"] for part in parts] == ["image_url", "image_url", "video_url"]
    assert end["choices"][0]["finish_reason"] == "stop"
    assert end["omnistage"]["stages"][0]["name"] == "omni"


async def test_an_image_leaves_before_the_words_that_come_after_it(tmp_path: Path) -> None:
    made = [text_output("Look:"), image_output(), text_output(" nice.")]
    gateway = AskedGateway(making("text", "image"), {"omni": made}, tmp_path)
    gateway["omni"].slow = True
    async with gateway.client() as http:
        answer = await http.post(CHAT, json=say(stream=True, modalities=["text", "image"]))

    contents = [chunk["choices"][0]["delta"].get("content") for chunk in chunks(answer)]
    assert contents[1] == "Look:"
    assert contents[2][0]["type"] == "image_url"
    assert contents[3] == " nice."


async def test_how_to_denoise_reaches_a_model_that_denoises_and_no_other(tmp_path: Path) -> None:
    body = say(num_inference_steps=3, num_frames=9, size="32x16")
    for denoises in (True, False):
        plan = making("video", denoises=denoises)
        gateway = AskedGateway(plan, {"omni": [video_output()]}, tmp_path)
        async with gateway.client() as http:
            answer = await http.post(CHAT, json=body)
        if denoises:
            diffusion = gateway["omni"].opens[0].parameters.diffusion
            assert diffusion is not None
            assert (diffusion.steps, diffusion.frames, diffusion.width) == (3, 9, 32)
        else:
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "size")


async def test_what_is_not_what_the_plan_says_is_the_stages_fault(tmp_path: Path) -> None:
    for output in (text_output("a cat", name="image"), image_output(width=0)):
        gateway = AskedGateway(making("image"), {"omni": [output]}, tmp_path)
        async with gateway.client() as http:
            whole = await http.post(CHAT, json=say())
            stream = await http.post(CHAT, json=say(stream=True))

        assert {whole.status_code, stream.status_code} == {500}
        assert whole.json()["error"]["code"] == EngineFailed.code


async def test_what_a_stage_refuses_is_named_as_the_client_wrote_it(tmp_path: Path) -> None:
    gateway = AskedGateway(making("video", denoises=True), {"omni": []}, tmp_path)
    async with gateway.client() as http:
        for field, named in [("frames", "num_frames"), ("voice", "audio.voice"), ("size", "size")]:
            gateway["omni"].outputs = (InvalidRequest("not that", field=field),)
            answer = await http.post(CHAT, json=say(num_frames=2))
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, named)


async def test_models_say_what_they_take_and_make(tmp_path: Path) -> None:
    async with AskedGateway(EYE, {"eye": []}, tmp_path).client() as http:
        model = (await http.get("/v1/models/graph")).json()

    assert model["omnistage"] == {"takes": ["conversation", "image"], "makes": ["text"]}


async def test_sound_of_two_channels_is_kept_so(tmp_path: Path) -> None:
    mono = sound_output(240).payload
    tensor = mono.content
    assert isinstance(tensor, Tensor)
    stereo = Tensor(header=replace(tensor.header, shape=(120, 2)), data=tensor.data)
    output = replace(sound_output(), payload=replace(mono, content=stereo))
    gateway = AskedGateway(making("speech"), {"omni": [output]}, tmp_path)
    async with gateway.client() as http:
        answer = await http.post(CHAT, json=say())

    data = base64.b64decode(answer.json()["choices"][0]["message"]["audio"]["data"])
    samples, _ = soundfile.read(io.BytesIO(data), dtype="int16")
    assert samples.shape == (120, 2)
    assert np.all(samples == 0x0101)
