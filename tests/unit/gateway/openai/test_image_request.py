"""What becomes of the bodies of image generations: taken as they mean, or refused by the field."""

from typing import Any

import msgspec
import pytest

from omnistage_common.errors import InvalidRequest
from omnistage_common.payloads import DiffusionParameters, Message, Parameters, TextPart
from omnistage_gateway.media.formats import ImageFormat
from omnistage_gateway.openai.image_request import (
    IMAGE_UNSUPPORTED,
    ImageRequest,
    parse_image_request,
)


def parse(**fields: Any) -> ImageRequest:
    return parse_image_request(
        msgspec.json.encode({"model": "painter", "prompt": "a cat", **fields})
    )


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    return caught.value


def test_the_smallest_request_asks_for_one_png_with_the_pipelines_defaults() -> None:
    request = parse()
    assert request.model == "painter"
    assert request.conversation.messages == (Message(role="user", parts=(TextPart(text="a cat"),)),)
    assert request.parameters == Parameters(diffusion=DiffusionParameters())
    assert (request.count, request.format, request.quality) == (1, ImageFormat.PNG, 100)
    assert (request.stream, request.denoising_field) == (False, "")


def test_every_parameter_reaches_the_engines() -> None:
    request = parse(
        n=3,
        size="1024x768",
        negative_prompt="dogs",
        num_inference_steps=30,
        guidance_scale=4.5,
        true_cfg_scale=1,
        seed=-7,
        stream=True,
        output_format="webp",
        output_compression=80,
    )
    assert request.parameters == Parameters(
        seed=-7,
        diffusion=DiffusionParameters(
            width=1024,
            height=768,
            steps=30,
            guidance_scale=4.5,
            true_cfg_scale=1.0,
            negative_prompt="dogs",
            count=3,
        ),
    )
    assert (request.count, request.format, request.quality) == (3, ImageFormat.WEBP, 80)
    assert request.stream


@pytest.mark.parametrize("image_format", ImageFormat)
def test_every_format_can_be_asked_for(image_format: ImageFormat) -> None:
    assert parse(output_format=image_format.value).format is image_format


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"n": 1}, ""),
        ({"size": "auto"}, ""),
        ({"n": 2}, "n"),
        ({"size": "64x64"}, "size"),
        ({"negative_prompt": "dogs"}, "negative_prompt"),
        ({"num_inference_steps": 1}, "num_inference_steps"),
        ({"guidance_scale": 0}, "guidance_scale"),
        ({"true_cfg_scale": 0}, "true_cfg_scale"),
    ],
)
def test_what_only_denoising_can_do_is_named(fields: dict[str, Any], named: str) -> None:
    assert parse(**fields).denoising_field == named


@pytest.mark.parametrize(
    "field",
    [
        {"user": "u"},
        {"safety_identifier": "s"},
        {"moderation": "low"},
        {"response_format": "b64_json"},
        {"partial_images": 2},
        {"quality": "auto"},
        {"quality": "standard"},
        {"background": "opaque"},
        {"return_stage_metrics": True},
        {"layers": 1},
        {"output_compression": 100},
        {"style": None},
    ],
    ids=str,
)
def test_fields_that_change_no_image_are_taken(field: dict[str, Any]) -> None:
    assert parse(**field) == parse()


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"model": None}, "model", "name of a model"),
        ({"prompt": ""}, "prompt", "a description of the image"),
        ({"prompt": " \n"}, "prompt", "blank; describe the image"),
        ({"prompt": ["a cat"]}, "prompt", "got a list of 1"),
        ({"n": 0}, "n", "from 1 to 10, got 0"),
        ({"n": 11}, "n", "got 11"),
        ({"size": "large"}, "size", "such as"),
        ({"response_format": "url"}, "response_format", "no URL of them; leave it out"),
        ({"response_format": "file"}, "response_format", 'expected "b64_json", got "file"'),
        ({"output_format": "gif"}, "output_format", "one of png, jpeg, webp"),
        ({"output_compression": 101}, "output_compression", "from 0 to 100"),
        ({"output_compression": 50}, "output_compression", "png loses nothing"),
        ({"partial_images": 4}, "partial_images", "from 0 to 3"),
        ({"num_inference_steps": 201}, "num_inference_steps", "from 1 to 200"),
        ({"guidance_scale": 21}, "guidance_scale", "from 0 to 20"),
        ({"moderation": "none"}, "moderation", '"auto" or "low"'),
        ({"seed": 2**63}, "seed", "64 bits"),
        ({"quality": "hd"}, "quality", "set `num_inference_steps`"),
        ({"background": "transparent"}, "background", "opaque"),
        ({"style": "vivid"}, "style", "in the prompt"),
        ({"prompts": "a cat"}, "prompts", "did you mean `prompt`?"),
        ({"messages": []}, "messages", "unknown field `messages`"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(
    fields: dict[str, Any], field: str, words: str
) -> None:
    error = refusal(**fields)
    assert error.field == field
    assert words in error.message


@pytest.mark.parametrize("field", ["model", "prompt"])
def test_a_missing_field_is_named(field: str) -> None:
    body = {name: "x" for name in ("model", "prompt") if name != field}
    with pytest.raises(InvalidRequest, match=f"`{field}` is missing") as caught:
        parse_image_request(msgspec.json.encode(body))
    assert caught.value.field == field


@pytest.mark.parametrize("field", sorted(IMAGE_UNSUPPORTED))
def test_an_unsupported_field_that_is_on_is_refused_with_a_remedy(field: str) -> None:
    error = refusal(**{field: {"on": True}})
    assert error.field == field
    assert error.message == f"`{field}` is not supported: {IMAGE_UNSUPPORTED[field].remedy}"


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"", "not valid JSON"), (b"[]", "an object with `model` and `prompt`"), (b"{", "JSON")],
)
def test_what_is_no_object_is_refused_as_the_body(body: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        parse_image_request(body)
    assert caught.value.field == "body"
