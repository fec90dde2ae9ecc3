"""The files of a run."""

from pathlib import Path

import msgspec
import pytest

from fakes.plans import one_stage_plan
from omnistage_cli.runtime.directory import Endpoint, RunDirectory, default_directory, last_lines
from omnistage_common.errors import SetupError
from omnistage_common.ids import PipelineName, ReplicaId, StageName
from omnistage_common.pipeline.assignments import assignment_of, read_assignment
from omnistage_common.pipeline.plan import decode_plan


def test_processes_read_what_was_written(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    endpoint = Endpoint(
        stage=StageName("thinker"), replica=ReplicaId("thinker-0"), address="127.0.0.1:1"
    )

    directory.write(one_stage_plan(), (endpoint,))

    assert decode_plan(directory.plan.read_bytes()) == one_stage_plan()
    thinker = StageName("thinker")
    told = assignment_of(one_stage_plan(), thinker)
    assert read_assignment(directory.assignment(thinker)) == told
    assert msgspec.json.decode(directory.endpoints.read_bytes()) == {
        "replicas": [{"stage": "thinker", "replica": "thinker-0", "address": "127.0.0.1:1"}]
    }


def test_two_runs_do_not_share_a_directory(tmp_path: Path) -> None:
    with (
        RunDirectory(tmp_path).locked(),
        pytest.raises(SetupError, match="--state-dir"),
        RunDirectory(tmp_path).locked(),
    ):
        pytest.fail("two runs at once")


def test_a_directory_is_free_again_after_a_run(tmp_path: Path) -> None:
    for _ in range(2):
        with RunDirectory(tmp_path / "new" / "folder").locked():
            assert (tmp_path / "new" / "folder").is_dir()


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with (
        pytest.raises(SetupError, match="--state-dir"),
        RunDirectory(tmp_path / "file" / "below").locked(),
    ):
        pytest.fail("a folder within a file")


def test_a_new_run_keeps_the_log_of_the_one_before(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with directory.locked():
        for words in ("first", "second", "third"):
            directory.new_log("thinker-0").write_text(words)

    assert (tmp_path / "logs" / "thinker-0.log").read_text() == "third"
    assert (tmp_path / "logs" / "thinker-0.log.1").read_text() == "second"


def test_last_lines_are_those_of_the_last_life(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\n")
    start = log.stat().st_size
    with log.open("a") as file:
        file.writelines(f"line {number}\n\n" for number in range(50))

    assert last_lines(log, start=start, count=2) == ("line 48", "line 49")
    assert last_lines(log, start=start, count=99)[0] == "line 0"


def test_last_lines_of_a_huge_log_of_foreign_bytes_are_cheap(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff" * 2**20 + b"\nthe end \xff\n")

    assert last_lines(log)[-1] == "the end \N{REPLACEMENT CHARACTER}"
    assert len("".join(last_lines(log))) < 2**17


def test_the_default_directory_follows_the_environment() -> None:
    name = PipelineName("omni")

    assert default_directory(name, {"XDG_STATE_HOME": "/s"}).parent == Path("/s/omnistage")
    assert default_directory(name, {}).parent == Path.home() / ".local" / "state" / "omnistage"
    assert default_directory(name, {}).name.startswith("omni-")
