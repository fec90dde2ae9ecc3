"""Assembles the HTTP application: the hot endpoint, the small ones, and one shape for errors.

The hot endpoint is an ASGI application that the router knows like any other route; requests for it
are handed to it before the middleware and the route matching, which it has no use for: it reads its
body by itself and answers its own errors.
"""

import time
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.exceptions import HTTPException
from starlette.routing import Route as HttpRoute
from starlette.types import Receive, Scope, Send

from omnistage_common.errors import InvalidRequest, OmnistageError, StageUnavailable
from omnistage_common.ids import ModelName
from omnistage_gateway.admission import Admission
from omnistage_gateway.endpoints.chat import ChatEndpoint
from omnistage_gateway.openai.errors import error_response
from omnistage_gateway.openai.models import model_body, model_list
from omnistage_gateway.openai.schema import (
    chat_completions_operation,
    components,
    models_operation,
)
from omnistage_gateway.pipelines.catalog import Catalog

__all__ = ["build_app"]

CHAT_PATH = "/v1/chat/completions"
MODELS_PATH = "/v1/models"


class GatewayApp(FastAPI):
    """FastAPI with a short way to the hot endpoint."""

    def __init__(self, chat: ChatEndpoint) -> None:
        super().__init__(title="Omnistage", version=version("omnistage"), redoc_url=None)
        self._chat = chat
        self.router.routes.append(HttpRoute(CHAT_PATH, chat, methods=["POST"]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope.get("path") == CHAT_PATH and scope.get("method") == "POST":
            await self._chat(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """The API's description; the hot endpoint's comes from its own wire types."""
        document = get_openapi(title=self.title, version=self.version, routes=())
        document["paths"][CHAT_PATH] = {"post": chat_completions_operation()}
        document["paths"][MODELS_PATH] = {"get": models_operation()}
        document.setdefault("components", {})["schemas"] = components()
        return document


def build_app(
    *,
    catalog: Catalog,
    admission: Admission,
    chat: ChatEndpoint,
    registry: CollectorRegistry,
) -> FastAPI:
    """The application of one gateway process."""
    app = GatewayApp(chat)
    _add_models(app, catalog)
    _add_probes(app, catalog, admission)
    _add_metrics(app, registry)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(OmnistageError, _omnistage_error)
    return app


def _add_models(app: FastAPI, catalog: Catalog) -> None:
    created = int(time.time())

    @app.get(MODELS_PATH)
    async def models() -> Response:
        return _json(model_list(catalog.models, created))

    @app.get(MODELS_PATH + "/{model:path}")
    async def model(model: str) -> Response:
        catalog.find(ModelName(model))
        return _json(model_body(ModelName(model), created))


def _add_probes(app: FastAPI, catalog: Catalog, admission: Admission) -> None:
    @app.get("/healthz")
    async def healthz() -> Response:
        return _json(b'{"status":"alive"}')

    @app.get("/readyz")
    async def readyz() -> Response:
        admission.check_open()
        unready = {
            pipeline.plan.name: pipeline.unready
            for pipeline in catalog.pipelines
            if pipeline.unready
        }
        if unready:
            reasons = "; ".join(f"{name}: {', '.join(stages)}" for name, stages in unready.items())
            raise StageUnavailable(f"stages without a ready replica: {reasons}")
        return _json(b'{"status":"ready"}')


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
