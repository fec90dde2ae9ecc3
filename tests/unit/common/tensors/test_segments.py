"""Segments: their names, their end, and which of them a sweep may take."""

import ctypes
import fcntl
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.tensor_producer import MIB, Producer, in_slab
from omnistage_common.errors import SetupError
from omnistage_common.ids import Incarnation, LeaseId, TensorToken
from omnistage_common.tensors import remove_stale
from omnistage_common.tensors.segments import (
    HEADER_BYTES,
    SharedSlab,
    Stamp,
    is_segment_name,
    read_header,
    read_stamp,
)

INCARNATION = Incarnation("1f" * 16)
NOBODY = "omnistage-1-00000000000000aa"


@pytest.fixture
def slab(tmp_path: Path) -> Iterator[SharedSlab]:
    made = SharedSlab(directory=tmp_path, incarnation=INCARNATION, slab_bytes=MIB)
    yield made
    if (tmp_path / made.name).exists():
        made.close()


def test_a_segment_is_readable_by_its_user_only_and_named_after_its_process(
    slab: SharedSlab, tmp_path: Path
) -> None:
    path = tmp_path / slab.name

    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == HEADER_BYTES + MIB
    assert slab.name.startswith(f"omnistage-{os.getpid()}-")
    assert is_segment_name(slab.name)


@pytest.mark.parametrize(
    "name",
    ["", "..", "../etc/passwd", "omnistage-1-", f"{NOBODY}/x", f"{NOBODY}\n", NOBODY.upper()],
)
def test_nothing_else_is_the_name_of_a_segment(name: str) -> None:
    assert not is_segment_name(name)


def test_header_and_stamp_are_read_back(slab: SharedSlab, tmp_path: Path) -> None:
    slab.write(128, 0, memoryview(b"tensor"))
    stamp = Stamp(lease=LeaseId(3), length=6, checksum=2**64 - 1, token=TensorToken("f0" * 16))
    slab.stamp(128, stamp)
    memory = memoryview((tmp_path / slab.name).read_bytes())

    position = slab.position(128)
    assert read_header(memory) == INCARNATION
    assert read_stamp(memory, position) == stamp
    assert bytes(memory[position : position + 6]) == b"tensor" == bytes(slab.view(128, 6))


def test_a_cleared_block_has_no_lease(slab: SharedSlab, tmp_path: Path) -> None:
    slab.stamp(0, Stamp(lease=LeaseId(3), length=6, checksum=1))
    slab.clear(0)

    memory = memoryview((tmp_path / slab.name).read_bytes())
    assert read_stamp(memory, slab.position(0)) == Stamp(lease=LeaseId(0))


def test_a_view_is_read_only_and_outlives_the_segment(slab: SharedSlab, tmp_path: Path) -> None:
    slab.write(0, 0, memoryview(b"tensor"))
    view = slab.view(0, 6)
    slab.close()

    assert list(tmp_path.iterdir()) == []
    assert view.readonly
    assert bytes(view) == b"tensor"


@pytest.mark.parametrize("content", [b"", b"x" * HEADER_BYTES, b"OMNISTAG" + b"\xff" * 8192])
def test_a_file_that_is_no_segment_is_nobodys(content: bytes) -> None:
    assert read_header(memoryview(content)) is None


def test_memory_is_taken_as_the_slab_is_used(tmp_path: Path) -> None:
    slab = SharedSlab(directory=tmp_path, incarnation=INCARNATION, slab_bytes=64 * MIB)
    at_first = (tmp_path / slab.name).stat().st_blocks * 512
    slab.write(10 * MIB, 0, memoryview(b"tensor"))

    assert at_first < 4 * MIB
    assert 10 * MIB < (tmp_path / slab.name).stat().st_blocks * 512 < 16 * MIB
    slab.close()


def test_what_is_written_in_place_is_what_a_view_shows(slab: SharedSlab) -> None:
    slab.writable(64, 6)[:] = b"tensor"

    assert bytes(slab.view(64, 6)) == b"tensor"


def test_the_address_is_that_of_the_memory(slab: SharedSlab) -> None:
    slab.write(0, 0, memoryview(b"tensor"))

    assert ctypes.string_at(slab.address + slab.position(0), 6) == b"tensor"


def test_all_the_memory_can_be_taken_at_once(slab: SharedSlab, tmp_path: Path) -> None:
    slab.claim_all()
    slab.claim_all()

    assert (tmp_path / slab.name).stat().st_blocks * 512 >= slab.size


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"absent.*must exist and be writable"):
        SharedSlab(directory=tmp_path / "absent", incarnation=INCARNATION, slab_bytes=MIB)


def test_a_segment_that_cannot_have_its_size_names_the_remedy_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, before[1]))
    try:
        with pytest.raises(SetupError, match=r"limits\.slabBytes"):
            SharedSlab(directory=tmp_path, incarnation=INCARNATION, slab_bytes=4 * MIB)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert list(tmp_path.iterdir()) == []


FILL = """
import sys
from pathlib import Path
from omnistage_common.errors import SetupError
from omnistage_common.tensors.segments import SharedSlab

slab = SharedSlab(directory=Path(sys.argv[1]), incarnation="a", slab_bytes=16 << 20)
try:
    for at in range(0, 16 << 20, 1 << 20):
        slab.write(0, at, memoryview(bytes(1 << 19)))
except SetupError as error:
    print(error)
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs a mount of its own")
def test_a_full_folder_is_an_error_and_not_the_death_of_the_process(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=5m tmpfs {tmp_path}"
    own_mounts = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*own_mounts, mount], check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount")

    done = subprocess.run(
        [*own_mounts, f'{mount} && exec "$@"', "sh", sys.executable, "-c", FILL, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
    )

    assert "No space left" in done.stdout
    assert "limits.slabBytes" in done.stdout


def test_the_segment_of_a_killed_process_is_removed(
    new_producer: Callable[[], Producer], tmp_path: Path
) -> None:
    producer = new_producer()
    name = in_slab(producer.publish(MIB)).segment
    assert remove_stale(tmp_path) == ()

    producer.kill()

    assert remove_stale(tmp_path) == (name,)
    assert list(tmp_path.iterdir()) == []


def test_a_living_owner_is_known_by_its_lock_and_not_by_its_process_id(
    slab: SharedSlab, tmp_path: Path
) -> None:
    of_this_process = tmp_path / f"omnistage-{os.getpid()}-00000000000000bb"
    of_this_process.touch()
    locked = tmp_path / "omnistage-4000000-00000000000000cc"

    with locked.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert remove_stale(tmp_path) == (of_this_process.name,)

    assert remove_stale(tmp_path) == (locked.name,)
    assert [path.name for path in tmp_path.iterdir()] == [slab.name]


def test_a_sweep_takes_nothing_but_segments(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("text")
    (tmp_path / NOBODY).symlink_to(precious)
    (tmp_path / f"omnistage-2-{'0' * 16}").mkdir()
    os.mkfifo(tmp_path / f"omnistage-3-{'0' * 16}")

    assert remove_stale(tmp_path) == ()
    assert len(list(tmp_path.iterdir())) == 4
