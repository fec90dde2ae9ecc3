"""The gateway's HTTP application without a network: every path, and one shape for refusals."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message

from fakes.frames import text_output
from fakes.graphs import graph_plan
from fakes.raw_client import question
from fakes.scripted_link import ScriptedLink
from omnistage_common.ids import (
    RequestId,
    RequestNumber,
    StageName,
    new_incarnation,
    this_host,
)
from omnistage_common.links.frames import Phase
from omnistage_common.tensors import TensorPlane
from omnistage_gateway.admission import Admission
from omnistage_gateway.app import build_app
from omnistage_gateway.endpoints.exchange import Services
from omnistage_gateway.metrics import GatewayMetrics
from omnistage_gateway.pipelines.catalog import Catalog
from omnistage_gateway.pipelines.pipeline import Pipeline
from omnistage_gateway.replicas.pool import StagePool
from omnistage_gateway.tensor_planes import TensorPlanes

CHAT = "/v1/chat/completions"
CREATED = 1_790_000_000


class EchoLink(ScriptedLink):
    """A thinker that has answered by the time it was asked, or raises what no link should."""

    broken: Exception | None = None
    asked: Callable[[], object] = staticmethod(lambda: None)

    def open(self, *args: Any, **kwargs: Any) -> RequestNumber:
        """Opens a request and answers it."""
        self.asked()
        if self.broken is not None:
            raise self.broken
        number = super().open(*args, **kwargs)
        self.makes([text_output("hello")])
        return number


class World:
    """An application and what it stands on."""

    def __init__(self, folder: Path, request_seconds: float = 30.0) -> None:
        plan = graph_plan(
            {"thinker": "conversation"},
            outputs={"thinker.text": "text"},
            request_seconds=request_seconds,
        )
        self.link = EchoLink("thinker")
        pools = {StageName("thinker"): StagePool(StageName("thinker"), [self.link])}
        self.catalog = Catalog()
        self.pipeline = Pipeline(plan, pools)
        self.catalog.put(self.pipeline)
        self.catalog.direct(self.pipeline.key, self.pipeline.revision, created=CREATED)
        self.admission = Admission(max_requests=2, max_body_bytes=10_000, body_budget_bytes=20_000)
        self.plane = TensorPlane(
            incarnation=new_incarnation(), host=this_host(), slab_bytes=1 << 20, directory=folder
        )
        registry = CollectorRegistry()
        services = Services(
            catalog=self.catalog,
            admission=self.admission,
            planes=TensorPlanes(lambda _: self.plane),
            metrics=GatewayMetrics(registry, admission=self.admission, catalog=self.catalog),
        )
        self.app = build_app(services, registry, check_ready=self.pipeline.check_routable)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
async def http(world: World) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(world.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client
    world.plane.close()


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The inside of OpenAI's error shape."""
    body = answer.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert int(answer.headers["content-length"]) == len(answer.content)
    return error


async def test_it_is_alive_whatever_its_stages_are(http: httpx.AsyncClient, world: World) -> None:
    world.link.breaks()
    world.admission.close()

    answer = await http.get("/healthz")

    assert (answer.status_code, answer.json()) == (200, {"status": "alive"})


async def test_it_is_ready_when_its_source_says_so(http: httpx.AsyncClient) -> None:
    answer = await http.get("/readyz")

    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


def no_link(world: World) -> None:
    world.link.breaks()


def loading(world: World) -> None:
    world.link.says_phase(Phase.LOADING)


def draining(world: World) -> None:
    world.admission.close()


@pytest.mark.parametrize(
    ("unmake", "code", "words"),
    [
        (no_link, "stage_unavailable", "thinker-0 is not connected"),
        (loading, "stage_unavailable", "thinker-0 is loading"),
        (draining, "draining", "going out of service"),
    ],
)
async def test_it_says_why_it_is_not_ready(
    http: httpx.AsyncClient,
    world: World,
    unmake: Callable[[World], None],
    code: str,
    words: str,
) -> None:
    unmake(world)

    answer = await http.get("/readyz")

    error = error_of(answer)
    assert (answer.status_code, error["code"]) == (503, code)
    assert answer.headers["retry-after"] == "1"
    assert words in error["message"]


async def test_models_are_listed_and_described(http: httpx.AsyncClient) -> None:
    listed = (await http.get("/v1/models")).json()
    found = (await http.get("/v1/models/graph")).json()

    assert listed == {"object": "list", "data": [found]}
    assert (found["id"], found["object"], found["owned_by"]) == ("graph", "model", "omnistage")
    assert found["created"] == CREATED


@pytest.mark.parametrize("name", ["gpt-9", "org/model", "%2F", "graph/"])
async def test_a_model_that_is_not_served_is_not_found(http: httpx.AsyncClient, name: str) -> None:
    answer = await http.get(f"/v1/models/{name}")

    error = error_of(answer)
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "there are: graph" in error["message"]


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/completions", "/v2/models", "/favicon.ico"])
async def test_a_path_that_is_none_is_not_found(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(path)

    error = error_of(answer)
    assert (answer.status_code, error["code"], error["param"]) == (404, "invalid_request", None)
    assert path in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST"),
        ("DELETE", CHAT, "POST"),
        ("GET", "/v1/images/generations", "POST"),
        ("PUT", "/v1/audio/speech", "POST"),
        ("POST", "/v1/models", "GET"),
        ("PUT", "/healthz", "GET"),
    ],
)
async def test_a_wrong_method_is_told_the_right_one(
    http: httpx.AsyncClient, method: str, path: str, allowed: str
) -> None:
    answer = await http.request(method, path)

    assert answer.status_code == 405
    assert answer.headers["allow"] == allowed
    assert error_of(answer)["message"] == f"Method Not Allowed: {method} {path}"


async def test_metrics_count_requests_by_how_they_ended(http: httpx.AsyncClient) -> None:
    await http.post(CHAT, json=question("graph"))
    await http.post(CHAT, json=question("gpt-9"))

    answer = await http.get("/metrics")

    lines = answer.text.splitlines()
    assert answer.headers["content-type"].startswith("text/plain")
    assert (
        'omnistage_gateway_requests_total{model="graph",outcome="done",pipeline="default/graph"} 1.0'
        in lines
    )
    assert (
        'omnistage_gateway_requests_total{model="",outcome="model_not_found",pipeline=""} 1.0'
        in lines
    )
    assert 'omnistage_gateway_outstanding{replica="thinker-0",stage="thinker"} 0.0' in lines
    assert "omnistage_gateway_in_flight 0.0" in lines
    assert (
        'omnistage_gateway_request_seconds_count{model="graph",pipeline="default/graph"} 1.0'
        in lines
    )
    assert 'omnistage_gateway_pipeline_requests{pipeline="default/graph",revision="r"} 0.0' in lines
    assert 'omnistage_gateway_pipeline_serving{pipeline="default/graph",revision="r"} 1.0' in lines
    assert 'omnistage_gateway_pipeline_routable{pipeline="default/graph",revision="r"} 1.0' in lines


async def test_scrapers_may_ask_for_openmetrics(http: httpx.AsyncClient) -> None:
    accept = "application/openmetrics-text;version=1.0.0"

    answer = await http.get("/metrics", headers={"accept": accept})

    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


async def test_the_api_describes_itself(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()

    assert document["info"]["title"] == "Omnistage"
    chat = document["paths"][CHAT]["post"]
    reference = chat["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert reference.rsplit("/", 1)[1] in document["components"]["schemas"]
    assert "get" in document["paths"]["/v1/models"]
    assert "post" in document["paths"]["/v1/images/generations"]
    assert "post" in document["paths"]["/v1/audio/speech"]
    text = json.dumps(document)
    assert all(f'"{name}"' in text for name in ("messages", "modalities", "max_completion_tokens"))


async def test_a_request_is_answered(http: httpx.AsyncClient, world: World) -> None:
    answer = await http.post(CHAT, json=question("graph"))

    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
    assert (world.admission.requests, world.admission.body_bytes) == (0, 0)


async def test_a_stream_is_answered(http: httpx.AsyncClient) -> None:
    answer = await http.post(CHAT, json=question("graph", stream=True))

    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("given", ["abc-123", "a b", "x" * 128])
async def test_a_clients_request_id_is_kept(
    http: httpx.AsyncClient, world: World, given: str
) -> None:
    answer = await http.post(CHAT, json=question("graph"), headers={"x-request-id": given})

    assert answer.headers["x-request-id"] == given
    assert answer.json()["omnistage"]["request_id"] == given
    assert world.link.opens[0].request_id == RequestId(given)


@pytest.mark.parametrize("given", ["", "x" * 129, "tab\there", "ol\xe9"])
async def test_a_request_id_that_is_not_safe_to_repeat_is_replaced(
    http: httpx.AsyncClient, given: str
) -> None:
    headers = [(b"x-request-id", given.encode("latin-1"))]

    answer = await http.post(CHAT, json=question("graph"), headers=headers)

    assert answer.headers["x-request-id"] not in {given, ""}


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "31", "soon", ""])
async def test_a_timeout_out_of_range_is_refused(http: httpx.AsyncClient, seconds: str) -> None:
    answer = await http.post(CHAT, json=question("graph"), headers={"x-request-timeout": seconds})

    error = error_of(answer)
    assert (answer.status_code, error["param"]) == (400, "X-Request-Timeout")
    assert "at most 30" in error["message"]


async def test_a_bug_costs_one_request_and_tells_nothing(
    http: httpx.AsyncClient, world: World
) -> None:
    world.link.broken = RuntimeError("a secret")

    answer = await http.post(CHAT, json=question("graph"), headers={"x-request-id": "mine"})

    assert answer.status_code == 500
    assert error_of(answer)["type"] == "server_error"
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"] == "mine"
    assert world.admission.requests == 0


async def test_after_a_stop_signal_requests_are_refused(
    http: httpx.AsyncClient, world: World
) -> None:
    world.admission.close()

    answer = await http.post(CHAT, json=question("graph"))

    assert (answer.status_code, error_of(answer)["code"]) == (503, "draining")
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_gateway_that_leaves_answers_and_asks_clients_to_connect_anew(
    http: httpx.AsyncClient, world: World, *, stream: bool
) -> None:
    world.admission.leave()

    ready = await http.get("/readyz")
    answer = await http.post(CHAT, json=question("graph", stream=stream))

    assert (ready.status_code, error_of(ready)["code"]) == (503, "draining")
    assert answer.status_code == 200
    assert "hello" in answer.text
    assert ready.headers["connection"] == answer.headers["connection"] == "close"


async def test_a_request_stays_on_its_revision_and_leaves_it(
    http: httpx.AsyncClient, world: World
) -> None:
    inside: list[int] = []
    world.link.asked = lambda: inside.append(world.pipeline.requests)

    await http.post(CHAT, json=question("graph"))
    world.link.broken = RuntimeError("a bug")
    await http.post(CHAT, json=question("graph"))
    await http.post(CHAT, json=question("graph"), headers={"x-request-timeout": "0"})

    assert inside == [1, 1]
    assert world.pipeline.requests == 0


async def test_a_body_that_is_too_large_ends_its_connection(http: httpx.AsyncClient) -> None:
    answer = await http.post(CHAT, content=b"x" * 10_001)

    assert (answer.status_code, error_of(answer)["code"]) == (413, "body_too_large")
    assert answer.headers["connection"] == "close"


async def test_a_body_that_does_not_come_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    world = World(tmp_path, request_seconds=0.05)
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
    await world.app(scope, receive, send)

    assert sent[0]["status"] == 504
    assert json.loads(sent[1]["body"])["error"]["code"] == "deadline_exceeded"
    assert (world.admission.requests, world.admission.body_bytes) == (0, 0)
    world.plane.close()
