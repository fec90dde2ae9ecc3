"""One question over HTTP, and every way in which no answer comes."""

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from fakes.fake_gateway import SOUND, Handler
from omnistage_cli.asking import Question, ask, question_from
from omnistage_cli.runtime.ports import free_ports
from omnistage_common.errors import (
    InvalidRequest,
    MissingOutput,
    ModelNotFound,
    ServerError,
    StageUnavailable,
)
from omnistage_common.ids import ModelName

TEXT = Question(text="hello?")


@pytest.fixture
def url() -> Iterator[str]:
    """Where a gateway listens."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def test_a_spoken_question_gets_a_spoken_answer(url: str) -> None:
    reply = ask(url, ModelName("fake"), Question(recording=b"RIFF"), spoken=True)

    assert reply.transcripts == ("what was said",)
    assert reply.text == "you asked: what was said"
    assert reply.audio == SOUND
    assert [(stage.name, stage.queue_ms, stage.run_ms) for stage in reply.stages] == [
        ("thinker", 0.5, 12.5)
    ]
    assert reply.total_ms == 13.5
    assert reply.elapsed_ms > 0


def test_a_written_question_gets_a_written_answer(url: str) -> None:
    reply = ask(url, ModelName("fake"), TEXT, spoken=False)

    assert (reply.text, reply.transcripts, reply.audio) == ("you asked: hello?", (), b"")


def test_an_error_of_the_pipeline_comes_back_as_itself(url: str) -> None:
    with pytest.raises(ModelNotFound, match="no such model"):
        ask(url, ModelName("unknown"), TEXT, spoken=False)


def test_an_answer_without_the_audio_it_owes_is_an_error(url: str) -> None:
    with pytest.raises(MissingOutput, match="no audio"):
        ask(url, ModelName("mute"), TEXT, spoken=True)


def test_an_answer_that_is_not_of_this_api_is_an_error(url: str) -> None:
    with pytest.raises(ServerError, match="not a chat completion"):
        ask(url, ModelName("foreign"), TEXT, spoken=False)


def test_a_gateway_that_is_not_there_is_an_error() -> None:
    with pytest.raises(StageUnavailable, match="does not answer"):
        ask(f"http://127.0.0.1:{free_ports(1)[0]}", ModelName("fake"), TEXT, spoken=False)


def test_a_question_is_a_recording_where_it_names_one(tmp_path: Path) -> None:
    wav = tmp_path / "question.WAV"
    wav.write_bytes(b"RIFF")

    assert question_from(str(wav)) == Question(recording=b"RIFF")
    assert question_from("What is a .wav file?") == Question(text="What is a .wav file?")


@pytest.mark.parametrize("given", ["missing.wav", "", "  "])
def test_a_question_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        question_from(given)

    assert caught.value.field == "--question"
