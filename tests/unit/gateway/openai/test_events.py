"""Events of images and speech that the official client, or any other, reads as its own."""

import base64
import json
from typing import Any

from openai.types import ImageGenCompletedEvent, ImagesResponse

from omnistage_common.ids import RequestId
from omnistage_gateway.media.formats import ImageFormat
from omnistage_gateway.openai.answers import AnswerUsage, RequestReport
from omnistage_gateway.openai.image_events import (
    MadeImage,
    image_progress,
    images_body,
    images_completed,
)
from omnistage_gateway.openai.speech_events import speech_delta, speech_done

REPORT = RequestReport(request_id=RequestId("abc"), total_ms=4.0)
IMAGES = tuple(
    MadeImage(data=data, format=ImageFormat.WEBP, width=64, height=32) for data in (b"one", b"two")
)


def events(stream: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Name and body of each event."""
    found: list[tuple[str, dict[str, Any]]] = []
    for event in stream.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert body["type"] == name.removeprefix("event: ")
        found.append((body["type"], body))
    return found


def test_a_body_of_images_is_an_images_response() -> None:
    body = images_body(IMAGES, created=5, prompt_tokens=7, report=REPORT)
    answer = ImagesResponse.model_validate_json(body, strict=True)
    assert answer.data is not None
    assert [base64.b64decode(image.b64_json or "") for image in answer.data] == [b"one", b"two"]
    assert (answer.created, answer.output_format, answer.size) == (5, "webp", "64x32")
    assert (answer.background, answer.quality) == ("opaque", None)
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.total_tokens) == (7, 7)
    assert (answer.model_extra or {})["omnistage"]["request_id"] == "abc"


def test_tokens_that_nobody_counts_are_not_reported() -> None:
    body = images_body(IMAGES, created=5, prompt_tokens=0, report=REPORT)
    assert ImagesResponse.model_validate_json(body, strict=True).usage is None


def test_each_image_of_a_stream_is_an_event_and_the_last_has_the_report() -> None:
    stream = images_completed(IMAGES, created=5, prompt_tokens=7, report=REPORT)
    bodies = [body for _, body in events(stream)]
    completed = [
        ImageGenCompletedEvent.model_validate_json(json.dumps(body), strict=True) for body in bodies
    ]
    assert [base64.b64decode(image.b64_json) for image in completed] == [b"one", b"two"]
    assert [body["index"] for body in bodies] == [0, 1]
    assert [image.usage.total_tokens for image in completed] == [0, 7]
    assert ["omnistage" in body for body in bodies] == [False, True]


def test_a_step_is_an_event_of_our_own() -> None:
    ((name, body),) = events(image_progress("dit", 3, 20))
    assert name == "image_generation.progress"
    assert (body["stage"], body["done"], body["total"]) == ("dit", 3, 20)


def test_a_piece_of_speech_is_a_delta_and_nothing_is_none() -> None:
    ((name, body),) = events(speech_delta(b"sound"))
    assert (name, base64.b64decode(body["audio"])) == ("speech.audio.delta", b"sound")
    assert speech_delta(b"") == b""


def test_the_end_of_speech_has_usage_and_report() -> None:
    ((name, body),) = events(speech_done(AnswerUsage.of(3, 0, 40), REPORT))
    assert name == "speech.audio.done"
    assert body["usage"] == {"input_tokens": 3, "output_tokens": 40, "total_tokens": 43}
    assert body["omnistage"]["request_id"] == "abc"
