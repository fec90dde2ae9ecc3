"""`POST /v1/audio/speech` without a network: files, bodies as they are made, events, refusals."""

import base64
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import soundfile
from starlette.types import Message as AsgiMessage

from fakes.asked_gateway import AskedGateway, sound_output
from fakes.graphs import SPEAKING, graph_plan
from omnistage_common.errors import EngineFailed, InvalidRequest
from omnistage_common.links.frames import Cancel, Delivery

PATH: Final = "/v1/audio/speech"
SAMPLES: Final = 480
PIECES: Final = (sound_output(240), sound_output(240, fill=2))


@pytest.fixture
def gateway(tmp_path: Path) -> AskedGateway:
    plan = graph_plan({"speaker": "text"}, outputs={"speaker.speech": "audio"})
    return AskedGateway(plan, {"speaker": PIECES}, tmp_path)


@pytest.fixture
async def http(gateway: AskedGateway) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway.client() as client:
        yield client


def words(**fields: Any) -> dict[str, Any]:
    return {"model": "graph", "input": "Hello there.", **fields}


@pytest.mark.parametrize(
    ("name", "container", "media_type"),
    [
        (None, "MP3", "audio/mpeg"),
        ("mp3", "MP3", "audio/mpeg"),
        ("opus", "OGG", "audio/ogg"),
        ("flac", "FLAC", "audio/flac"),
        ("wav", "WAV", "audio/wav"),
    ],
)
async def test_speech_comes_as_a_file_of_the_format(
    http: httpx.AsyncClient, name: str | None, container: str, media_type: str
) -> None:
    answer = await http.post(PATH, json=words(response_format=name))

    assert answer.status_code == 200
    assert answer.headers["content-type"] == media_type
    assert int(answer.headers["content-length"]) == len(answer.content)
    with soundfile.SoundFile(io.BytesIO(answer.content)) as file:
        assert (file.format, file.samplerate) == (container, 24_000)
        assert name not in {"wav", "flac"} or file.frames == SAMPLES


async def test_pcm_is_the_samples_and_nothing_else(http: httpx.AsyncClient) -> None:
    answer = await http.post(PATH, json=words(response_format="pcm"))

    assert answer.headers["content-type"] == "audio/pcm"
    assert answer.content == b"\1" * SAMPLES + b"\2" * SAMPLES


async def test_the_text_and_the_voice_reach_the_stage(
    http: httpx.AsyncClient, gateway: AskedGateway
) -> None:
    await http.post(PATH, json=words(voice="alloy", speed=2, seed=5))

    (opened,) = gateway["speaker"].opens
    (given,) = opened.inputs
    assert (given.name, given.payload.content) == ("text", "Hello there.")
    parameters = opened.parameters
    assert (parameters.voice, parameters.speed, parameters.seed) == ("alloy", 2.0, 5)
    assert opened.delivery is Delivery.FINAL


@pytest.mark.parametrize("name", ["pcm", "wav", "mp3", "flac"])
async def test_a_streamed_body_is_one_file_in_the_end(
    http: httpx.AsyncClient, gateway: AskedGateway, name: str
) -> None:
    answer = await http.post(PATH, json=words(response_format=name, stream_format="audio"))

    assert "content-length" not in answer.headers
    assert gateway["speaker"].opens[0].delivery is Delivery.DELTAS
    if name == "pcm":
        assert answer.content == b"\1" * SAMPLES + b"\2" * SAMPLES
    else:
        samples, rate = soundfile.read(io.BytesIO(answer.content), dtype="int16")
        assert rate == 24_000
        assert name == "mp3" or len(samples) == SAMPLES


async def test_events_carry_the_same_bytes_and_end_with_usage(http: httpx.AsyncClient) -> None:
    answer = await http.post(PATH, json=words(response_format="pcm", stream_format="sse"))

    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    *deltas, done = [json.loads(line.removeprefix("data: ")) for line in lines]
    sound = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert sound == b"\1" * SAMPLES + b"\2" * SAMPLES
    assert done["type"] == "speech.audio.done"
    assert done["usage"]["total_tokens"] == 0
    assert done["omnistage"]["stages"][0]["name"] == "speaker"


@pytest.mark.parametrize("stream_format", [None, "audio", "sse"])
async def test_no_sound_is_an_error_with_a_status(
    http: httpx.AsyncClient, gateway: AskedGateway, stream_format: str | None
) -> None:
    gateway["speaker"].outputs = (sound_output(0),)

    answer = await http.post(PATH, json=words(stream_format=stream_format))

    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "missing_output")


class Client:
    """A client on ASGI that asks and then, as soon as anybody looks, is gone."""

    def __init__(self, **fields: Any) -> None:
        body = json.dumps(words(**fields)).encode()
        self._messages: list[AsgiMessage] = [{"type": "http.request", "body": body}]
        self.sent: list[AsgiMessage] = []

    async def ask(self, gateway: AskedGateway) -> None:
        """Sends the request and takes what comes."""
        scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}
        await gateway.app(scope, self._receive, self._send)
        gateway.plane.close()

    async def _receive(self) -> AsgiMessage:
        return self._messages.pop(0) if self._messages else {"type": "http.disconnect"}

    async def _send(self, message: AsgiMessage) -> None:
        self.sent.append(message)


async def test_a_body_that_fails_half_way_is_left_unfinished(gateway: AskedGateway) -> None:
    gateway["speaker"].outputs = (sound_output(240), EngineFailed("no memory"))
    gateway["speaker"].slow = True
    client = Client(response_format="pcm", stream_format="audio")

    await client.ask(gateway)

    head, piece = client.sent
    assert (head["status"], piece["body"]) == (200, b"\1" * 480)
    assert piece["more_body"]


async def test_events_that_fail_half_way_end_with_the_error(gateway: AskedGateway) -> None:
    gateway["speaker"].outputs = (sound_output(240), EngineFailed("no memory"))
    gateway["speaker"].slow = True
    client = Client(response_format="pcm", stream_format="sse")

    await client.ask(gateway)

    *_, last = client.sent
    assert json.loads(last["body"].removeprefix(b"data: "))["error"]["code"] == "engine_failed"
    assert not last["more_body"]


async def test_a_client_that_goes_away_silences_the_speaker(gateway: AskedGateway) -> None:
    gateway["speaker"].answers = False
    client = Client()

    await client.ask(gateway)

    assert client.sent == []
    assert isinstance(gateway["speaker"].closes[0], Cancel)


async def test_an_unknown_voice_is_named_as_the_client_wrote_it(
    http: httpx.AsyncClient, gateway: AskedGateway
) -> None:
    gateway["speaker"].outputs = (InvalidRequest("unknown voice", field="audio.voice"),)

    answer = await http.post(PATH, json=words(voice="nobody"))

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "voice")


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "gpt-9"}, 404, "model"),
        ({"response_format": "aac"}, 400, "response_format"),
        ({"speed": 9}, 400, "speed"),
        ({"input": "x" * (1 << 20)}, 413, "body"),
    ],
)
async def test_a_refusal_names_the_field(
    http: httpx.AsyncClient, fields: dict[str, Any], status: int, param: str
) -> None:
    answer = await http.post(PATH, json=words(**fields))

    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


async def test_a_model_that_holds_conversations_says_where_to_go(tmp_path: Path) -> None:
    makes = dict.fromkeys(map(str, (stage.name for stage in SPEAKING.stages)), PIECES)
    async with AskedGateway(SPEAKING, makes, tmp_path).client() as http:
        answer = await http.post(PATH, json=words())

    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "unsupported_modality")
    assert error["param"] == "model"
    assert "POST /v1/chat/completions" in error["message"]


async def test_a_speaker_that_is_talked_to_says_where_to_go(http: httpx.AsyncClient) -> None:
    body = {"model": "graph", "messages": [{"role": "user", "content": "Hello"}]}

    answer = await http.post("/v1/chat/completions", json=body)

    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "model")
    assert "POST /v1/audio/speech" in error["message"]


async def test_a_passed_deadline_is_a_504_and_nothing_is_left(
    http: httpx.AsyncClient, gateway: AskedGateway
) -> None:
    gateway["speaker"].answers = False

    answer = await http.post(PATH, json=words(), headers={"x-request-timeout": "0.05"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert isinstance(gateway["speaker"].closes[0], Cancel)
