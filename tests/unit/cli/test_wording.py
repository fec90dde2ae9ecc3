"""What happens to processes, in words."""

import json
import shlex

import pytest

from omnistage_cli.runtime.launching import Site
from omnistage_cli.runtime.supervision import ReplicaPhase, Supervision
from omnistage_cli.runtime.wording import (
    curl_example,
    exit_in_words,
    log_line_in_words,
    mebibytes,
    state_in_words,
)
from omnistage_common.addresses import Address
from omnistage_common.ids import ModelName


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (1, "exited with code 1"),
        (3, "its setup is wrong"),
        (127, "its program cannot be executed"),
        (-9, "killed by SIGKILL"),
        (-200, "killed by signal 200"),
        (None, "ended"),
    ],
)
def test_an_exit_is_told_in_words(code: int | None, words: str) -> None:
    assert exit_in_words(code) == words


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (Supervision(), "starting 2 s"),
        (Supervision(phase=ReplicaPhase.LOADING), "loading 2 s"),
        (Supervision(phase=ReplicaPhase.LOADING, restarts=3), "loading 2 s (restart 3)"),
        (Supervision(phase=ReplicaPhase.READY), "ready"),
        (Supervision(phase=ReplicaPhase.READY, restarts=2), "ready (restarts: 2)"),
        (
            Supervision(phase=ReplicaPhase.BACKING_OFF, restarts=1, delay=4.0, last_exit=-9),
            "killed by SIGKILL; restart 2 in 2.0 s",
        ),
        (Supervision(phase=ReplicaPhase.GIVEN_UP, last_exit=1), "given up: exited with code 1"),
        (Supervision(phase=ReplicaPhase.STOPPING), "stopping"),
        (Supervision(phase=ReplicaPhase.STOPPED), "stopped"),
    ],
)
def test_a_state_is_told_in_words(state: Supervision, words: str) -> None:
    assert state_in_words(state, 2.0) == words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            '{"event": "no model", "level": "error", "timestamp": "t", "path": "/m"}',
            "error no model path=/m",
        ),
        ('{"event": "ready"}', "ready"),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
        ('["a", "list"]', '["a", "list"]'),
        ("", ""),
    ],
)
def test_a_log_line_is_told_in_words(line: str, words: str) -> None:
    assert log_line_in_words(line) == words


def test_a_long_log_line_is_shortened() -> None:
    assert len(log_line_in_words("x" * 10_000)) < 1000


def test_memory_is_told_in_mebibytes() -> None:
    assert mebibytes(812 * 2**20) == "812 MiB"


def test_the_example_is_a_command_that_a_shell_takes() -> None:
    site = Site(listen=Address(host="0.0.0.0", port=8000))  # noqa: S104 - nothing is bound

    words = shlex.split(curl_example(site, ModelName("voice-assistant")))

    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == "voice-assistant"


def test_an_ipv6_site_has_a_url_with_brackets() -> None:
    assert Site(listen=Address(host="::1", port=80)).url == "http://[::1]:80"
    assert Site(listen=Address(host="::", port=80)).url == "http://[::1]:80"
