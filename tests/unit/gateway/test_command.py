"""`python -m omnistage_gateway`, when nothing can be started: a status, and a line that says why."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.graphs import SPEAKING
from omnistage_common.pipeline.plan import encode_plan


def no_plan(folder: Path) -> None:
    (folder / "plan.json").unlink()


def broken_plan(folder: Path) -> None:
    (folder / "plan.json").write_text("{}")


def no_endpoints(folder: Path) -> None:
    (folder / "endpoints.json").unlink()


def endpoint_of_another_pipeline(folder: Path) -> None:
    replica = {"stage": "painter", "replica": "painter-0", "address": "127.0.0.1:1"}
    (folder / "endpoints.json").write_text(json.dumps({"replicas": [replica]}))


def nothing_wrong(folder: Path) -> None:
    """The port is busy all the same."""


@pytest.mark.parametrize(
    ("spoil", "field", "words"),
    [
        (no_plan, "--plan", "cannot read the plan"),
        (broken_plan, "--plan", "is not a plan"),
        (no_endpoints, "--endpoints", "cannot read the endpoints"),
        (endpoint_of_another_pipeline, "--endpoints", "painter-0 is of stage 'painter'"),
        (nothing_wrong, "--listen", "cannot listen on 127.0.0.1"),
    ],
)
def test_what_keeps_it_from_starting_is_said_in_one_line(
    tmp_path: Path, spoil: Callable[[Path], None], field: str, words: str
) -> None:
    (tmp_path / "plan.json").write_bytes(encode_plan(SPEAKING))
    (tmp_path / "endpoints.json").write_text('{"replicas": []}')
    spoil(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "omnistage_gateway"),
                *("--plan", str(tmp_path / "plan.json")),
                *("--endpoints", str(tmp_path / "endpoints.json")),
                *("--listen", f"127.0.0.1:{busy.getsockname()[1]}"),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    (line,) = ended.stderr.splitlines()
    said = json.loads(line)
    assert ended.returncode == 3
    assert (said["component"], said["level"], said["field"]) == ("gateway", "error", field)
    assert words in said["error"]
