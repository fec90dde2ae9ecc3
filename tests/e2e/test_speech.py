"""Speech from real processes, by the official client."""

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest
import soundfile

from fakes.deployment import Deploy, Deployment, deployed, plan_from_text, within

PIPELINE: Final = """\
apiVersion: omnistage.io/v1alpha1
kind: InferencePipeline
metadata: {{name: reader}}
spec:
  topology:
    stages:
      - name: speaker
        execution: Generation
        consumes:
          - {{name: text, kind: text}}
        produces:
          - {{name: speech, kind: waveform}}
        defaults:
          engine: simulated
          engineArgs:
            steps: 10
            step_seconds: {step_seconds}
            {more}
            outputs:
              speech: {{element_type: int16, shape: [2400], rate_hz: 24000, when: step}}
    outputs:
      - {{stage: speaker, output: speech, modality: audio}}
  timeouts: {{request: 30s, drain: 5s}}
"""
PIECES: Final = 10
SAMPLES: Final = 2400 * PIECES


def pipeline(*, step_seconds: float = 0.0, more: str = "") -> str:
    """A speaker of ten pieces of a tenth of a second."""
    return PIPELINE.format(step_seconds=step_seconds, more=more)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("reader")
    with deployed(plan_from_text(pipeline(step_seconds=0.05)), folder) as deployment:
        yield deployment


def opened(deployment: Deployment) -> openai.OpenAI:
    """The official client of a deployment."""
    url = f"{deployment.gateway.url}/v1"
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=30)


@pytest.fixture
def client(reader: Deployment) -> Iterator[openai.OpenAI]:
    with opened(reader) as client:
        yield client
    assert within(1.0, lambda: reader.idle), reader.held()


def asked(**fields: Any) -> Any:
    return {"model": "reader", "input": "Hello there.", "voice": "alloy", **fields}


@pytest.mark.parametrize("name", ["mp3", "opus", "flac", "wav"])
def test_a_text_is_spoken_in_every_format(client: openai.OpenAI, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"answer.{name}"

    client.audio.speech.create(**asked(response_format=name)).write_to_file(path)

    info = soundfile.info(str(path))
    assert info.format == {"opus": "OGG"}.get(name, name.upper())
    assert info.duration == pytest.approx(1.0, rel=0.1)


def test_pcm_is_every_sample_and_nothing_else(client: openai.OpenAI) -> None:
    answer = client.audio.speech.create(**asked(response_format="pcm"))

    assert answer.content == bytes(2 * SAMPLES)


@pytest.mark.parametrize("name", ["pcm", "wav", "mp3"])
def test_a_streamed_body_is_a_file_in_the_end(
    client: openai.OpenAI, tmp_path: Path, name: str
) -> None:
    path = tmp_path / f"answer.{name}"
    speech = client.audio.speech.with_streaming_response

    with speech.create(**asked(response_format=name, stream_format="audio")) as answer:
        answer.stream_to_file(path)

    if name == "pcm":
        assert path.read_bytes() == bytes(2 * SAMPLES)
    else:
        samples, rate = soundfile.read(str(path), dtype="int16")
        assert rate == 24_000
        assert len(samples) == pytest.approx(SAMPLES, rel=0.1)


def test_the_first_sound_comes_long_before_the_last(client: openai.OpenAI) -> None:
    speech = client.audio.speech.with_streaming_response
    start = time.monotonic()
    with speech.create(**asked(response_format="pcm", stream_format="audio")) as answer:
        arrivals = [time.monotonic() - start for _ in answer.iter_bytes()]

    assert len(arrivals) > PIECES // 2
    assert arrivals[0] < arrivals[-1] / 2


def test_events_carry_the_sound_and_end_with_usage(reader: Deployment) -> None:
    url = f"{reader.gateway.url}/v1/audio/speech"
    answer = httpx.post(url, json=asked(response_format="pcm", stream_format="sse"), timeout=30)

    lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    *deltas, done = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert len(deltas) > PIECES // 2
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas) == bytes(2 * SAMPLES)
    assert done["type"] == "speech.audio.done"
    assert done["omnistage"]["stages"][0]["name"] == "speaker"


def test_what_cannot_be_done_is_refused_by_name(client: openai.OpenAI) -> None:
    for fields, param in [
        ({"response_format": "aac"}, "response_format"),
        ({"instructions": "Whisper."}, "instructions"),
        ({"input": " "}, "input"),
        ({"model": "nobody"}, "model"),
    ]:
        with pytest.raises(openai.APIStatusError) as refused:
            client.audio.speech.create(**asked(**fields))
        assert refused.value.response.json()["error"]["param"] == param


def test_a_model_that_holds_conversations_says_where_to_go(omni: Deployment) -> None:
    with opened(omni) as client, pytest.raises(openai.BadRequestError) as refused:
        client.audio.speech.create(**asked(model="simulated-omni"))

    assert refused.value.code == "unsupported_modality"
    assert "/v1/chat/completions" in refused.value.message


def test_a_client_that_goes_away_silences_the_speaker(deploy: Deploy) -> None:
    slow = deploy(plan_from_text(pipeline(step_seconds=1)))
    url = f"{slow.gateway.url}/v1/audio/speech"
    body = asked(response_format="pcm", stream_format="audio")
    with httpx.stream("POST", url, json=body, timeout=30) as answer:
        sound = answer.iter_bytes()
        assert next(sound)
        assert slow.held()["running"] == 1

    assert within(1.0, lambda: slow.idle), slow.held()


def test_a_failure_in_the_middle_of_a_body_is_raised(deploy: Deploy) -> None:
    """The engine fails at its 5th step."""
    deployment = deploy(plan_from_text(pipeline(step_seconds=0.05, more="fail_after_steps: 4")))
    with opened(deployment) as client:
        with pytest.raises(openai.InternalServerError) as whole:
            client.audio.speech.create(**asked())
        speech = client.audio.speech.with_streaming_response
        with speech.create(**asked(response_format="pcm", stream_format="audio")) as answer:
            sound = answer.iter_bytes()
            assert next(sound)
            with pytest.raises(Exception, match="peer closed connection"):
                list(sound)
        url = f"{deployment.gateway.url}/v1/audio/speech"
        events = httpx.post(url, json=asked(response_format="pcm", stream_format="sse"))

    assert whole.value.code == "engine_failed"
    assert '"code":"engine_failed"' in events.text.strip().splitlines()[-1]
    assert within(1.0, lambda: deployment.idle), deployment.held()
