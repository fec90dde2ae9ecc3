"""`omnistage up` and `omnistage demo` as a user runs them: real stages, a real gateway, real signals."""

import asyncio
import http.client
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnistage_cli.runtime.gateway_client import GatewayClient
from omnistage_cli.runtime.ports import LOOPBACK, free_ports
from omnistage_common.addresses import Address
from omnistage_common.tensors import SHARED_MEMORY_FOLDER

ROOT = Path(__file__).parents[2]
PIPELINE = ROOT / "deploy" / "pipelines" / "simulated-omni.yaml"
VOICE_ASSISTANT = ROOT / "deploy" / "pipelines" / "voice-assistant.yaml"
OMNISTAGE = (sys.executable, "-m", "omnistage_cli")
READY = "ready: http://"
STAGES = 3


class Up:
    """A running `omnistage up`, and what it has said so far."""

    def __init__(self, state: Path, *arguments: str, port: int | None = None) -> None:
        self.port = port or free_ports(1)[0]
        self.lines: list[str] = []
        self._state = state
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            [
                *(*OMNISTAGE, "up", str(PIPELINE)),
                *("--port", str(self.port), "--state-dir", str(state), *arguments),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=state,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.pids: set[int] = set()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            with self._news:
                self.lines.append(line.rstrip())
                self._news.notify_all()
        with self._news:
            self.lines.append("<end>")
            self._news.notify_all()

    def until(self, words: str, times: int = 1) -> None:
        """Waits until it has said something that often."""

        def said() -> bool:
            return sum(words in line for line in self.lines) >= times

        with self._news:
            self._news.wait_for(lambda: said() or "<end>" in self.lines, timeout=60)
            assert said(), "\n".join(self.lines)
        self.pids.update(self.children())

    def children(self, *words: str) -> list[int]:
        """Ids of its processes whose command lines hold all the words."""
        wanted = (str(self._state), "--exit-with-parent", *words)
        pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
        return [pid for pid in pids if all(word in command_line(pid) for word in wanted)]

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal, as a terminal or an operator would."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Its exit code."""
        code = self._process.wait(timeout=60)
        self._reader.join()
        return code

    def close(self) -> None:
        """Ends it, whatever state it is in."""
        self._process.kill()
        self.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def command_line(pid: int) -> str:
    """What a process was started with; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def segments_of(pids: set[int]) -> list[Path]:
    """Shared memory of processes."""
    return [path for pid in pids for path in SHARED_MEMORY_FOLDER.glob(f"omnistage-{pid}-*")]


class Starter:
    """Starts runs and ends them all."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.runs: list[Up] = []

    def __call__(self, *arguments: str, port: int | None = None) -> Up:
        """A run that has just been started."""
        run = Up(self._root, *arguments, port=port)
        self.runs.append(run)
        return run

    def ready(self, *arguments: str) -> Up:
        """A run that serves."""
        run = self(*arguments)
        run.until(READY)
        return run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """Starts `omnistage up`; nothing of it may be left at the end of the test."""
    starter = Starter(tmp_path)
    yield starter
    left = [run.children() for run in starter.runs]
    for run in starter.runs:
        run.close()
    assert left == [[] for _ in starter.runs]
    assert [segments_of(run.pids) for run in starter.runs] == [[] for _ in starter.runs]


def connect(run: Up) -> http.client.HTTPConnection:
    """A connection to the gateway of a run."""
    return http.client.HTTPConnection(LOOPBACK, run.port, timeout=60)


def send_question(connection: http.client.HTTPConnection, *, stream: bool) -> None:
    """Asks for text and audio."""
    body = {
        "model": "simulated-omni",
        "messages": [{"role": "user", "content": "hello"}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "alloy", "format": "pcm16" if stream else "wav"},
        "stream": stream,
    }
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
    )


def answers(run: Up) -> bool:
    """Whether the pipeline answers a question with text and audio."""
    connection = connect(run)
    try:
        send_question(connection, stream=False)
        response = connection.getresponse()
        message = json.loads(response.read())["choices"][0]["message"]
    finally:
        connection.close()
    return response.status == 200 and bool(message["content"] and message["audio"]["data"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_interrupted_and_leaves_nothing(
    start: Starter, number: signal.Signals
) -> None:
    run = start.ready()
    assert answers(run)
    assert len(run.children()) == STAGES + 1

    run.signal(number)

    assert run.wait() == 0
    assert run.children() == []
    assert segments_of(run.pids) == []


def test_a_killed_stage_is_restarted_and_shown_and_serves_again(start: Starter) -> None:
    run = start.ready()
    (talker,) = run.children("--replica", "talker-0")

    os.kill(talker, signal.SIGKILL)

    run.until("talker-0: killed by SIGKILL; restart 1 in")
    run.until("talker-0: ready", times=2)
    asyncio.run(until_ready(run))
    assert answers(run)
    assert segments_of({talker}) == []
    run.signal(signal.SIGINT)
    assert run.wait() == 0


async def until_ready(run: Up) -> None:
    """Returns when the gateway has found its stages again."""
    async for ready in GatewayClient(Address(host=LOOPBACK, port=run.port)).serving():
        if ready:
            break


def test_a_stage_that_cannot_start_is_given_up_with_the_reason(start: Starter) -> None:
    run = start("--set", "stages.talker.engineArgs.no_such_argument=1")

    assert run.wait() == 1

    said = "\n".join(run.lines)
    assert "talker-0: given up: its setup is wrong" in said
    assert "  talker-0 | " in said
    assert "no_such_argument" in said
    assert "error: talker-0 does not start" in said
    assert READY not in said


def test_children_do_not_outlive_a_killed_runtime(start: Starter) -> None:
    run = start.ready()
    descriptors = [os.pidfd_open(pid) for pid in run.children()]
    assert len(descriptors) == STAGES + 1

    run.signal(signal.SIGKILL)

    try:
        for descriptor in descriptors:
            assert select.select([descriptor], [], [], 30)[0] == [descriptor]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    assert segments_of(run.pids) == []


def test_a_busy_port_is_refused_before_anything_starts(start: Starter) -> None:
    with socket.socket() as busy:
        busy.bind((LOOPBACK, 0))
        busy.listen()
        run = start(port=busy.getsockname()[1])

        assert run.wait() == 1

    said = "\n".join(run.lines)
    assert "is in use; choose another with --port" in said
    assert "starting" not in said


SLOW = ("--set", "stages.thinker.engineArgs.step_seconds=0.1")


def test_a_request_that_is_under_way_is_finished_first(start: Starter) -> None:
    run = start.ready(*SLOW)
    connection = connect(run)
    try:
        send_question(connection, stream=True)
        response = connection.getresponse()
        first = response.readline()

        run.signal(signal.SIGINT)

        rest = response.read()
    finally:
        connection.close()
    assert first.startswith(b"data: ")
    assert b'"audio"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")
    assert run.wait() == 0


def test_a_second_interrupt_does_not_wait(start: Starter) -> None:
    run = start.ready("--set", "stages.thinker.engineArgs.step_seconds=2")
    connection = connect(run)
    try:
        send_question(connection, stream=True)
        connection.getresponse().readline()
        run.signal(signal.SIGINT)
        run.until("gateway: stopping")
        run.signal(signal.SIGINT)

        assert run.wait() == 130
    finally:
        connection.close()
    assert run.children() == []


def ask_in_a_demo(pipeline: Path, output: Path, *arguments: str) -> str:
    """What a demo prints; it must end well and leave nothing."""
    done = subprocess.run(
        [
            *(*OMNISTAGE, "demo", str(pipeline), "--output", str(output)),
            *("--state-dir", str(output.parent / "state"), *arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_demo_of_simulated_stages_answers_in_text_and_sound(tmp_path: Path) -> None:
    said = ask_in_a_demo(PIPELINE, tmp_path / "answer.wav", "--question", "hello?")

    assert "Question: hello?" in said
    assert "Answer: word word" in said.replace("  ", " ")
    for stage in ("thinker", "talker", "code2wav"):
        assert f"│ {stage}" in said
    with wave.open(str(tmp_path / "answer.wav")) as sound:
        assert (sound.getframerate(), sound.getnframes()) == (24_000, 7680)


@pytest.mark.engines
@pytest.mark.timeout(360)
def test_the_demo_hears_the_question_and_speaks_the_answer(tmp_path: Path) -> None:
    said = ask_in_a_demo(VOICE_ASSISTANT, tmp_path / "answer.wav")

    assert "Recognised question: what is the capital of france" in said
    assert "Paris" in said
    with wave.open(io.BytesIO((tmp_path / "answer.wav").read_bytes())) as sound:
        assert sound.getnframes() > sound.getframerate()
