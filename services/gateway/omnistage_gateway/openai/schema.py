"""OpenAPI fragments of the endpoints whose bodies FastAPI never sees.

Those endpoints read and write bytes themselves, so FastAPI cannot derive their schemas. They are made
here from the very structs that decode and encode those bytes, so page and behaviour cannot differ.
"""

from typing import Any

import msgspec

from omnistage_gateway.openai.answers import ChatCompletionAnswer
from omnistage_gateway.openai.chat_body import ChatCompletionBody
from omnistage_gateway.openai.errors import ErrorBody
from omnistage_gateway.openai.image_events import ImagesAnswer
from omnistage_gateway.openai.image_request import ImageGenerationBody
from omnistage_gateway.openai.models import ModelBody, ModelList
from omnistage_gateway.openai.speech_request import SpeechBody, SpeechFormat

__all__ = [
    "chat_completions_operation",
    "components",
    "images_operation",
    "models_operation",
    "speech_operation",
]

_REF = "#/components/schemas/{name}"


def components() -> dict[str, Any]:
    """Name -> JSON schema, for `components.schemas` of the OpenAPI document."""
    types = (
        ChatCompletionBody,
        ChatCompletionAnswer,
        ImageGenerationBody,
        ImagesAnswer,
        SpeechBody,
        ErrorBody,
        ModelBody,
        ModelList,
    )
    _, schemas = msgspec.json.schema_components(types, ref_template=_REF)
    return schemas


def chat_completions_operation() -> dict[str, Any]:
    """What FastAPI's `openapi_extra` wants for `POST /v1/chat/completions`."""
    answer = _json(ChatCompletionAnswer) | _events("Chunks as server-sent events.")
    return _operation(ChatCompletionBody, answer)


def images_operation() -> dict[str, Any]:
    """The same for `POST /v1/images/generations`."""
    answer = _json(ImagesAnswer) | _events("Steps and images as server-sent events.")
    return _operation(ImageGenerationBody, answer)


def speech_operation() -> dict[str, Any]:
    """The same for `POST /v1/audio/speech`."""
    file = {"schema": {"type": "string", "format": "binary"}}
    answer = {kind.audio_format.media_type: file for kind in SpeechFormat}
    return _operation(SpeechBody, answer | _events("Sound as server-sent events."))


def _operation(body: type[msgspec.Struct], answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "requestBody": {"required": True, "content": _json(body)},
        "responses": {
            "200": {"description": "The answer.", "content": answer},
            **_failures(400, 404, 413, 429, 500, 503, 504),
        },
    }


def _events(description: str) -> dict[str, Any]:
    return {"text/event-stream": {"schema": {"type": "string", "description": description}}}


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
