"""The published schema says what the parser does."""

import json
import re

from fastapi import FastAPI

from omnistage_gateway.openai.chat_body import ChatCompletionBody
from omnistage_gateway.openai.schema import (
    chat_completions_operation,
    components,
    images_operation,
    models_operation,
    speech_operation,
)


def references(value: object) -> set[str]:
    return set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(value)))


def test_every_reference_has_its_component() -> None:
    schemas = components()
    operations = (chat_completions_operation, images_operation, speech_operation, models_operation)
    used = references([schemas, *(operation() for operation in operations)])
    assert used <= schemas.keys()
    assert {"ChatCompletionBody", "ChatCompletionAnswer", "ErrorBody", "ModelList"} <= used
    assert {"ImageGenerationBody", "ImagesAnswer", "SpeechBody"} <= used


def test_the_schema_has_every_field_with_its_range() -> None:
    body = components()["ChatCompletionBody"]
    assert set(body["properties"]) == set(ChatCompletionBody.__struct_encode_fields__)
    assert sorted(body["required"]) == ["messages", "model"]
    temperature = body["properties"]["temperature"]["anyOf"][0]
    assert (temperature["minimum"], temperature["maximum"]) == (0, 2)
    assert body["additionalProperties"] is False


def test_a_file_of_speech_can_be_of_every_format() -> None:
    content = speech_operation()["responses"]["200"]["content"]
    assert {"audio/mpeg", "audio/ogg", "audio/flac", "audio/wav", "audio/pcm"} < content.keys()


def test_fastapi_shows_the_endpoint() -> None:
    app = FastAPI()

    @app.post("/v1/chat/completions", openapi_extra=chat_completions_operation())
    async def chat() -> None:
        """Answers."""

    operation = app.openapi()["paths"]["/v1/chat/completions"]["post"]
    assert references(operation["requestBody"]) == {"ChatCompletionBody"}
    assert {"200", "400", "429", "503", "504"} <= operation["responses"].keys()
