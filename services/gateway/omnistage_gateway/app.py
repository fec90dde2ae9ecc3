"""Assembles the HTTP application: the endpoints that compute, the small ones, and one shape for errors.

Those that compute are ASGI applications that the router knows like any other route; requests for them
are handed over before the middleware and the route matching, which they have no use for: they read
their bodies by themselves and answer their own errors.
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.exceptions import HTTPException
from starlette.routing import Route as HttpRoute
from starlette.types import Message, Receive, Scope, Send

from omnistage_common.errors import InvalidRequest, OmnistageError
from omnistage_common.ids import ModelName
from omnistage_gateway.admission import Admission
from omnistage_gateway.endpoints.chat import CHAT_FIELDS, answer_chat
from omnistage_gateway.endpoints.exchange import Endpoint, Services
from omnistage_gateway.endpoints.http import CLOSE
from omnistage_gateway.endpoints.images import IMAGE_FIELDS, answer_images
from omnistage_gateway.endpoints.speech import SPEECH_FIELDS, answer_speech
from omnistage_gateway.openai.errors import error_response
from omnistage_gateway.openai.models import ModelBody, model_body, model_list, model_report
from omnistage_gateway.openai.schema import (
    chat_completions_operation,
    components,
    images_operation,
    models_operation,
    speech_operation,
)
from omnistage_gateway.pipelines.catalog import Catalog, Listing

__all__ = ["build_app"]

CHAT_PATH = "/v1/chat/completions"
IMAGES_PATH = "/v1/images/generations"
SPEECH_PATH = "/v1/audio/speech"
MODELS_PATH = "/v1/models"


class GatewayApp(FastAPI):
    """FastAPI with a short way to the endpoints that compute."""

    def __init__(self, endpoints: Mapping[str, Endpoint], admission: Admission) -> None:
        """Makes the application.

        Args:
            endpoints: Path -> what is behind it; the method is always POST.
            admission: Knows whether this gateway goes; then clients are asked to connect anew.
        """
        super().__init__(title="Omnistage", version=version("omnistage"), redoc_url=None)
        self._endpoints = endpoints
        self._admission = admission
        self.router.routes += [
            HttpRoute(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if self._admission.leaving:
            send = _closing(send)
        if scope.get("method") == "POST":
            endpoint = self._endpoints.get(scope["path"])
            if endpoint is not None:
                await endpoint(scope, receive, send)
                return
        await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """The API's description; that of the endpoints comes from their own wire types."""
        document = get_openapi(title=self.title, version=self.version, routes=())
        document["paths"] |= {
            CHAT_PATH: {"post": chat_completions_operation()},
            IMAGES_PATH: {"post": images_operation()},
            SPEECH_PATH: {"post": speech_operation()},
            MODELS_PATH: {"get": models_operation()},
        }
        document.setdefault("components", {})["schemas"] = components()
        return document


def build_app(
    services: Services, registry: CollectorRegistry, *, check_ready: Callable[[], None]
) -> FastAPI:
    """The application of one gateway process.

    Args:
        services: What its requests share.
        registry: Its metrics.
        check_ready: Raises the `OmnistageError` that says why it should get no requests yet.
    """
    app = GatewayApp(
        {
            CHAT_PATH: Endpoint(services, answer_chat, fields=CHAT_FIELDS),
            IMAGES_PATH: Endpoint(services, answer_images, fields=IMAGE_FIELDS),
            SPEECH_PATH: Endpoint(services, answer_speech, fields=SPEECH_FIELDS),
        },
        services.admission,
    )
    _add_models(app, services.catalog)
    _add_probes(app, services.admission, check_ready)
    _add_metrics(app, registry)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(OmnistageError, _omnistage_error)
    return app


def _add_models(app: FastAPI, catalog: Catalog) -> None:
    @app.get(MODELS_PATH)
    async def models() -> Response:
        listings = [catalog.listing(model) for model in catalog.models]
        return _json(model_list([_entry(listing) for listing in listings]))

    @app.get(MODELS_PATH + "/{model:path}")
    async def model(model: str) -> Response:
        return _json(model_body(_entry(catalog.listing(ModelName(model)))))


def _entry(listing: Listing) -> ModelBody:
    abilities = listing.pipeline.abilities
    report = model_report(abilities.takes, [modality.value for modality in abilities.makes])
    return ModelBody(listing.name, listing.created, report)


def _add_probes(app: FastAPI, admission: Admission, check_ready: Callable[[], None]) -> None:
    @app.get("/healthz")
    async def healthz() -> Response:
        return _json(b'{"status":"alive"}')

    @app.get("/readyz")
    async def readyz() -> Response:
        admission.check_staying()
        check_ready()
        return _json(b'{"status":"ready"}')


def _closing(send: Send) -> Send:
    """Sends the same, and ends the connection with the answer."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), CLOSE]}
        await send(message)

    return closing


def _add_metrics(app: FastAPI, registry: CollectorRegistry) -> None:
    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


async def _omnistage_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, OmnistageError):
        raise error
    response = error_response(error)
    headers = {name.decode(): value.decode() for name, value in response.headers}
    return Response(response.body, status_code=response.status, headers=headers)


async def _http_error(request: Request, error: Exception) -> Response:
    """What the router itself refuses, in the shape that clients expect."""
    if not isinstance(error, HTTPException):
        raise error
    status = HTTPStatus(error.status_code)
    message = f"{status.phrase}: {request.method} {request.url.path}"
    response = await _omnistage_error(request, InvalidRequest(message))
    response.status_code = error.status_code
    response.headers.update(error.headers or {})
    return response
