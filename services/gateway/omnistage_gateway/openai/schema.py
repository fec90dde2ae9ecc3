"""OpenAPI fragments of the endpoints whose bodies FastAPI never sees.

The chat endpoint reads and writes bytes itself, so FastAPI cannot derive its schema. It is made
here from the very structs that decode and encode those bytes, so page and behaviour cannot differ.
"""

from typing import Any

import msgspec

from omnistage_gateway.openai.answers import ChatCompletionAnswer
from omnistage_gateway.openai.chat_body import ChatCompletionBody
from omnistage_gateway.openai.errors import ErrorBody
from omnistage_gateway.openai.models import ModelBody, ModelList

__all__ = ["chat_completions_operation", "components", "models_operation"]

_REF = "#/components/schemas/{name}"


def components() -> dict[str, Any]:
    """Name -> JSON schema, for `components.schemas` of the OpenAPI document."""
    types = (ChatCompletionBody, ChatCompletionAnswer, ErrorBody, ModelBody, ModelList)
    _, schemas = msgspec.json.schema_components(types, ref_template=_REF)
    return schemas


def chat_completions_operation() -> dict[str, Any]:
    """What FastAPI's `openapi_extra` wants for `POST /v1/chat/completions`."""
    answer = _json(ChatCompletionAnswer)
    answer["text/event-stream"] = {
        "schema": {"type": "string", "description": "Chunks as server-sent events."}
    }
    return {
        "requestBody": {"required": True, "content": _json(ChatCompletionBody)},
        "responses": {
            "200": {"description": "The answer.", "content": answer},
            **_failures(400, 404, 413, 429, 500, 503, 504),
        },
    }


def models_operation() -> dict[str, Any]:
    """What FastAPI's `openapi_extra` wants for `GET /v1/models`."""
    return {"responses": {"200": {"description": "Models.", "content": _json(ModelList)}}}


def _json(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(name=kind.__name__)}}}


def _failures(*statuses: int) -> dict[str, Any]:
    return {
        str(status): {"description": "Refused or failed.", "content": _json(ErrorBody)}
        for status in statuses
    }
