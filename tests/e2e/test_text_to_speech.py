"""The shipped text-to-speech pipeline as real processes with real weights, heard by a recogniser."""

import difflib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import openai
import pytest
import soundfile

from fakes.deployment import Deployment, deployed, resolved_plan
from fakes.engine_io import RecordedOutputs, engine_request, engine_spec
from omnistage_common.payloads import Payload, PayloadKind
from omnistage_gateway.media.audio import decode_audio
from omnistage_gateway.media.formats import AudioInputFormat, EncodedAudio
from omnistage_stage.engines.pocketsphinx import PocketsphinxEngine

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]

SHIPPED: Final = Path(__file__).parents[2] / "deploy" / "pipelines" / "text-to-speech.yaml"
SENTENCES: Final = "What is the capital of France? The capital of France is Paris."


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(resolved_plan(file=SHIPPED), tmp_path_factory.mktemp("voice")) as deployment:
        yield deployment


@pytest.fixture
def client(voice: Deployment) -> Iterator[openai.OpenAI]:
    url = f"{voice.gateway.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def asked(**fields: Any) -> Any:
    return {"model": "text-to-speech", "input": SENTENCES, "voice": "alloy", **fields}


async def words_in(wav: bytes) -> list[str]:
    """What is said in a recording."""
    engine = PocketsphinxEngine(engine_spec({"transcript": PayloadKind.TEXT}))
    await engine.load()
    try:
        sound = decode_audio(EncodedAudio(data=wav, format=AudioInputFormat.WAV, field="answer"))
        outputs = RecordedOutputs()
        recording = Payload(kind=PayloadKind.WAVEFORM, content=sound)
        await engine.run(engine_request({"audio": (recording,)}), outputs)
        return outputs.text.split()
    finally:
        await engine.close()


async def test_a_recogniser_hears_the_words_that_were_to_be_spoken(client: openai.OpenAI) -> None:
    whole = client.audio.speech.create(**asked(response_format="wav")).content

    heard = await words_in(whole)
    written = re.findall(r"[a-z']+", SENTENCES.lower())
    assert difflib.SequenceMatcher(None, written, heard).ratio() > 2 / 3, heard
    assert "paris" in heard


def test_what_is_streamed_is_what_comes_whole_sample_for_sample(client: openai.OpenAI) -> None:
    whole = client.audio.speech.create(**asked(response_format="pcm")).content
    speech = client.audio.speech.with_streaming_response
    with speech.create(**asked(response_format="pcm", stream_format="audio")) as answer:
        streamed = list(answer.iter_bytes())

    assert len(streamed) > 1, "a piece for each sentence at least"
    assert b"".join(streamed) == whole


def test_a_higher_speed_takes_less_time(client: openai.OpenAI) -> None:
    slow, fast = (
        client.audio.speech.create(**asked(speed=speed, response_format="pcm")).content
        for speed in (1.0, 2.0)
    )

    assert len(fast) < 0.7 * len(slow)


def test_a_voice_that_there_is_not_is_named_as_the_client_wrote_it(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.audio.speech.create(**asked(voice="nobody"))

    assert refused.value.param == "voice"


def test_the_default_format_is_as_loud_as_the_voice(client: openai.OpenAI) -> None:
    peaks = []
    for fields in ({}, {"response_format": "wav"}):
        data = client.audio.speech.create(**asked(**fields)).content
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32")
        assert rate == 24_000
        peaks.append(np.abs(samples).max())

    assert peaks[0] == pytest.approx(peaks[1], rel=0.3)
