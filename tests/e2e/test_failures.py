"""Everything that can go wrong with a request, as one table: what happens, and what the client sees.

Each row does to a real pipeline what its name says and hands back what came of it. Whatever it is,
the client gets the OpenAI error shape with the status, type, field and code of the row, in time.
"""

import base64
import io
import json
import time
import wave
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import httpx
import pytest
from msgspec import Struct

from fakes.deployment import Deployment, Gateway, deployed, plan_from_text, within
from fakes.pipelines import listening_pipeline
from fakes.raw_client import RawClient, question
from omnistage_common.pipeline.plan import PipelinePlan

MODEL = "listening"
LONG = 100_000
"""Steps that take longer than any test."""
LIMIT = 256 * 1024
"""Bytes of a body that the strict gateway takes."""


class Seen(Struct, frozen=True, kw_only=True):
    """What a client saw."""

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float = 0.0
    """Since what the row is about happened."""


class World(Struct, frozen=True, kw_only=True):
    """What the rows act on."""

    fragile: Deployment
    silent: Deployment
    """The same, but its speaker makes no samples."""
    strict: Gateway
    """One request and `LIMIT` bytes at once, in front of the same replicas."""

    def post(
        self,
        body: Any,
        gateway: Gateway | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Seen:
        """Asks, and waits for the whole answer."""
        url = (gateway or self.fragile.gateway).url + "/v1/chat/completions"
        begin = time.monotonic()
        answer = httpx.post(url, json=body, headers=headers, timeout=30)
        return Seen(
            status=answer.status_code,
            headers=dict(answer.headers),
            body=answer.content,
            seconds=time.monotonic() - begin,
        )

    def asking(self, gateway: Gateway | None = None, **fields: Any) -> RawClient:
        """A client whose long streamed answer has begun."""
        client = RawClient((gateway or self.fragile.gateway).port)
        client.ask(question(MODEL, max_tokens=LONG, stream=True, **fields))
        assert client.read_head()[0] == 200
        client.read_chunk()
        return client

    def settled(self) -> bool:
        """Whether nothing is left of any request within a second."""
        return within(1.0, lambda: self.fragile.idle)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    def plan(samples: int) -> PipelinePlan:
        return plan_from_text(
            listening_pipeline(samples=samples, step_seconds=0.02, max_running=1, max_queued=1)
        )

    with (
        deployed(plan(7680), tmp_path_factory.mktemp("fragile")) as fragile,
        deployed(plan(0), tmp_path_factory.mktemp("silent")) as silent,
    ):
        strict = fragile.add_gateway(
            *("--max-requests", "1", "--max-body-mib", str(LIMIT / 1024 / 1024))
        )
        yield World(fragile=fragile, silent=silent, strict=strict)


Act = Callable[[World], Seen]


def asked(**fields: Any) -> Act:
    """A request with these fields of its body."""
    return lambda world: world.post(question(MODEL, max_tokens=2, **fields))


def content(*parts: dict[str, Any]) -> dict[str, Any]:
    """A message of these parts."""
    return {"messages": [{"role": "user", "content": list(parts)}]}


def recording(data: bytes) -> dict[str, Any]:
    """A part that claims to be a WAV file."""
    encoded = base64.b64encode(data).decode()
    return {"type": "input_audio", "input_audio": {"data": encoded, "format": "wav"}}


def wav_of_silence(seconds: int) -> bytes:
    """A WAV file at 16 kHz."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 16_000, 0, "NONE", ""))
        sound.writeframes(bytes(2 * 16_000 * seconds))
    return file.getvalue()


FAR_IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYGAAAAAEAAH2FzhVAAAAAElFTkSuQmCC"
)
IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}


def body_that_is_no_json(world: World) -> Seen:
    with RawClient(world.fragile.gateway.port) as client:
        client.send_head(Content_Length="9")
        client.send(b'{"model":')
        return seen_by(client)


def body_kept_back(world: World) -> Seen:
    with RawClient(world.strict.port) as client:
        client.send_head(Content_Length=str(LIMIT + 1))
        return seen_by(client)


def body_without_end(world: World) -> Seen:
    """Chunks until the connection fails: the gateway must not take them all."""
    piece = bytes(64 * 1024)
    chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
    taken = 0
    with RawClient(world.strict.port) as client:
        client.send_head(Transfer_Encoding="chunked")
        try:
            while taken < 100 * LIMIT:
                client.send(chunk)
                taken += len(piece)
        except ConnectionError:
            pass
        assert taken < 100 * LIMIT
        return seen_by(client)


def seen_by(client: RawClient, since: float | None = None) -> Seen:
    """The answer to a request, whole or the last event of its stream."""
    begin = time.monotonic() if since is None else since
    status, headers = client.read_head()
    body = client.read_body(headers)
    return Seen(status=status, headers=headers, body=body, seconds=time.monotonic() - begin)


def full_queue(world: World) -> Seen:
    running = world.asking()
    with running, RawClient(world.fragile.gateway.port) as waiting:
        waiting.ask(question(MODEL, max_tokens=LONG, stream=True))
        assert within(5, lambda: world.fragile.held()["queued"] == 1)
        return world.post(question(MODEL))


def full_gateway(world: World) -> Seen:
    with world.asking(world.strict):
        return world.post(question(MODEL), world.strict)


def dead_stage(world: World) -> Seen:
    """The first stage is slow, the second dead: nobody waits for the first to learn that."""
    speaker = world.fragile.replica("speaker-0")
    speaker.kill()
    try:
        return world.post(question(MODEL, speak=True, max_tokens=LONG))
    finally:
        world.fragile.revive("speaker-0")


def stage_that_dies_meanwhile(world: World) -> Seen:
    """Of a request that is not streamed."""
    with RawClient(world.fragile.gateway.port) as client:
        client.ask(question(MODEL, max_tokens=LONG))
        assert within(5, lambda: world.fragile.held()["running"] == 1)
        world.fragile.replica("thinker-0").kill()
        died = time.monotonic()
        try:
            return seen_by(client, died)
        finally:
            world.fragile.revive("thinker-0")


def stage_that_dies_in_a_stream(world: World) -> Seen:
    with world.asking() as client:
        world.fragile.replica("thinker-0").kill()
        died = time.monotonic()
        try:
            return failed_stream(client, died)
        finally:
            world.fragile.revive("thinker-0")


def failed_stream(client: RawClient, since: float) -> Seen:
    """What ended a stream that had begun: its last event, which must be an error."""
    rest = client.read_rest()
    assert b"[DONE]" not in rest
    event = rest.strip().split(b"\n\n")[-1]
    seconds = time.monotonic() - since
    return Seen(status=200, headers={}, body=event.removeprefix(b"data: "), seconds=seconds)


def late(world: World) -> Seen:
    return world.post(question(MODEL, max_tokens=LONG), headers={"X-Request-Timeout": "0.2"})


def late_in_a_stream(world: World) -> Seen:
    with RawClient(world.fragile.gateway.port) as client:
        body = question(MODEL, max_tokens=LONG, stream=True)
        client.ask(body, X_Request_Timeout="0.2")
        assert client.read_head()[0] == 200
        return failed_stream(client, time.monotonic())


def late_behind_a_full_engine(world: World) -> Seen:
    with world.asking():
        return late(world)


def broken_engine(world: World) -> Seen:
    return world.post(question(MODEL, speak=True, max_tokens=25))


def broken_engine_in_a_stream(world: World) -> Seen:
    with RawClient(world.fragile.gateway.port) as client:
        client.ask(question(MODEL, speak=True, max_tokens=25, stream=True))
        assert client.read_head()[0] == 200
        return failed_stream(client, time.monotonic())


def silence(world: World) -> Seen:
    return world.post(question(MODEL, speak=True, max_tokens=2), world.silent.gateway)


def silence_in_a_stream(world: World) -> Seen:
    with RawClient(world.silent.gateway.port) as client:
        client.ask(question(MODEL, speak=True, max_tokens=2, stream=True))
        assert client.read_head()[0] == 200
        return failed_stream(client, time.monotonic())


class Row(Struct, frozen=True, kw_only=True):
    """What happens, and what the client sees of it."""

    act: Act
    status: int
    """200 for what happens to a stream that has begun."""
    type: str = "invalid_request_error"
    param: str | None = None
    code: str = "invalid_request"
    again: bool = False
    """The client is told when to try again."""


UNSUPPORTED = "unsupported_modality"
AUDIO_DATA = "messages[0].content[0].input_audio.data"

TABLE = {
    "unknown model": Row(
        act=asked(model="gpt-9"), status=404, param="model", code="model_not_found"
    ),
    "image out": Row(
        act=asked(modalities=["text", "image"]),
        status=400,
        param="modalities",
        code=UNSUPPORTED,
    ),
    "video out": Row(
        act=asked(modalities=["video"]), status=400, param="modalities", code=UNSUPPORTED
    ),
    "image in": Row(act=asked(**content(IMAGE)), status=400, param="messages", code=UNSUPPORTED),
    "image by address": Row(
        act=asked(**content(FAR_IMAGE)),
        status=400,
        param="messages[0].content[0].image_url.url",
    ),
    "malformed audio": Row(
        act=asked(**content(recording(b"not a WAV file"))), status=400, param=AUDIO_DATA
    ),
    "audio that is no base64": Row(
        act=asked(
            **content({"type": "input_audio", "input_audio": {"data": "*", "format": "wav"}})
        ),
        status=400,
        param=AUDIO_DATA,
    ),
    "empty messages": Row(act=asked(messages=[]), status=400, param="messages"),
    "wrong type": Row(act=asked(temperature="hot"), status=400, param="temperature"),
    "wrong type inside": Row(
        act=asked(messages=[{"role": "user", "content": 5}]),
        status=400,
        param="messages[0].content",
    ),
    "no JSON": Row(act=body_that_is_no_json, status=400, param="body"),
    "a time-out that is no number": Row(
        act=lambda world: world.post(question(MODEL), headers={"X-Request-Timeout": "soon"}),
        status=400,
        param="X-Request-Timeout",
    ),
    "a declared body over the limit": Row(
        act=body_kept_back, status=413, param="body", code="body_too_large"
    ),
    "a chunked body over the limit": Row(
        act=body_without_end, status=413, param="body", code="body_too_large"
    ),
    "a stage's queue is full": Row(
        act=full_queue, status=429, type="rate_limit_error", code="too_many_requests", again=True
    ),
    "the gateway is full": Row(
        act=full_gateway, status=429, type="rate_limit_error", code="too_many_requests", again=True
    ),
    "a stage is dead": Row(
        act=dead_stage,
        status=503,
        type="service_unavailable",
        code="stage_unavailable",
        again=True,
    ),
    "a stage dies meanwhile": Row(
        act=stage_that_dies_meanwhile,
        status=503,
        type="service_unavailable",
        code="stage_unavailable",
        again=True,
    ),
    "a stage dies in a stream": Row(
        act=stage_that_dies_in_a_stream,
        status=200,
        type="service_unavailable",
        code="stage_unavailable",
    ),
    "the deadline passes": Row(
        act=late, status=504, type="timeout_error", code="deadline_exceeded"
    ),
    "the deadline passes in a stream": Row(
        act=late_in_a_stream, status=200, type="timeout_error", code="deadline_exceeded"
    ),
    "the deadline passes in the queue": Row(
        act=late_behind_a_full_engine, status=504, type="timeout_error", code="deadline_exceeded"
    ),
    "the engine fails": Row(
        act=broken_engine, status=500, type="server_error", code="engine_failed"
    ),
    "the engine fails in a stream": Row(
        act=broken_engine_in_a_stream, status=200, type="server_error", code="engine_failed"
    ),
    "audio without a sample": Row(
        act=silence, status=500, type="server_error", code="missing_output"
    ),
    "audio without a sample in a stream": Row(
        act=silence_in_a_stream, status=200, type="server_error", code="missing_output"
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_failure_is_told_in_time_and_in_openai_shape(world: World, name: str) -> None:
    row = TABLE[name]

    seen = row.act(world)

    (error,) = json.loads(seen.body).values()
    assert seen.status == row.status, error
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == (row.type, row.param, row.code)
    assert error["message"]
    assert ("retry-after" in seen.headers) == row.again
    assert seen.seconds < 1.0
    assert world.settled()


def test_requests_that_share_an_id_do_not_share_their_tensors(world: World) -> None:
    """An id is the client's to choose; the end of one request leaves the other's audio alone."""
    sound = content(recording(wav_of_silence(seconds=2)))
    with RawClient(world.fragile.gateway.port) as patient:
        with world.asking():
            patient.ask(question(MODEL, max_tokens=2, **sound), X_Request_Id="same")
            assert within(5, lambda: world.fragile.held()["queued"] == 1)

            refused = world.post(question(MODEL, **sound), headers={"X-Request-Id": "same"})

        seen = seen_by(patient)
    assert refused.status == 429
    assert (seen.status, seen.headers["x-request-id"]) == (200, "same")
