"""The published schema says what the parser does."""

import json
import re

from fastapi import FastAPI

from omnistage_gateway.openai.chat_body import ChatCompletionBody
from omnistage_gateway.openai.schema import (
    chat_completions_operation,
    components,
    models_operation,
)


def references(value: object) -> set[str]:
    return set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(value)))


def test_every_reference_has_its_component() -> None:
    schemas = components()
    used = references([schemas, chat_completions_operation(), models_operation()])
    assert used <= schemas.keys()
    assert {"ChatCompletionBody", "ChatCompletionAnswer", "ErrorBody", "ModelList"} <= used


def test_the_schema_has_every_field_with_its_range() -> None:
    body = components()["ChatCompletionBody"]
    assert set(body["properties"]) == set(ChatCompletionBody.__struct_encode_fields__)
    assert body["required"] == ["model", "messages"]
    temperature = body["properties"]["temperature"]["anyOf"][0]
    assert (temperature["minimum"], temperature["maximum"]) == (0, 2)
    assert body["additionalProperties"] is False


def test_fastapi_shows_the_endpoint() -> None:
    app = FastAPI()

    @app.post("/v1/chat/completions", openapi_extra=chat_completions_operation())
    async def chat() -> None:
        """Answers."""

    operation = app.openapi()["paths"]["/v1/chat/completions"]["post"]
    assert references(operation["requestBody"]) == {"ChatCompletionBody"}
    assert {"200", "400", "429", "503", "504"} <= operation["responses"].keys()
