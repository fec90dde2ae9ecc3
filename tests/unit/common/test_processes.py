"""What a process learns from the kernel about itself and its parent."""

import os
import signal
import subprocess
import sys

import pytest

from omnistage_common.processes import PARENT_VARIABLE, resident_bytes

CHILD = """
import sys
from omnistage_common.processes import exit_with_parent
exit_with_parent()
print("here", flush=True)
sys.stdin.read()
"""

PARENT = f"""
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_process_ends_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    descriptor = os.pidfd_open(int(parent.stdout.readline()))
    try:
        parent.kill()
        parent.wait()
        # A pidfd is readable when its process has ended.
        gone = subprocess.run(
            [
                sys.executable,
                "-c",
                f"import select; print(select.select([{descriptor}], [], [], 30)[0])",
            ],
            pass_fds=[descriptor],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        os.close(descriptor)
        parent.communicate()
    assert gone.stdout.strip() == f"[{descriptor}]"


def test_a_process_whose_parent_has_ended_already_ends_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={**os.environ, PARENT_VARIABLE: "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, b"")


def test_a_process_whose_parent_lives_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )

    assert done.stdout == b"here\n"


def test_resident_memory_grows_with_what_is_used() -> None:
    # In a process of its own: this one may have as much memory lying about, free to be used again.
    program = """
from omnistage_common.processes import resident_bytes
before = resident_bytes()
used = b"x" * (32 * 2**20)
print(resident_bytes() - before)
"""

    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)

    grown = int(done.stdout)
    assert 0.9 * 32 * 2**20 < grown < 1.5 * 32 * 2**20


def test_resident_memory_of_another_process_is_told() -> None:
    assert 2**20 < resident_bytes(os.getppid()) < 2**40


def test_a_process_that_does_not_exist_has_no_memory() -> None:
    done = subprocess.Popen(["/bin/true"])
    done.wait()

    with pytest.raises(ProcessLookupError, match=str(done.pid)):
        resident_bytes(done.pid)


def test_the_signal_is_one_that_lets_a_process_tidy_up() -> None:
    script = (
        "import ctypes\n"
        "from omnistage_common.processes import exit_with_parent\n"
        "exit_with_parent()\n"
        "number = ctypes.c_int()\n"
        "ctypes.CDLL(None).prctl(2, ctypes.byref(number))\n"
        "print(number.value)\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)

    assert int(done.stdout) == signal.SIGTERM


@pytest.mark.parametrize("program", ["omnistage_gateway", "omnistage_stage"])
@pytest.mark.parametrize(
    ("given", "taken"), [(None, "-event_engine_client,-event_engine_listener"), ("", "")]
)
def test_grpc_is_told_which_engine_to_use_before_it_is_imported(
    program: str, given: str | None, taken: str
) -> None:
    probe = f"""
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("GRPC_EXPERIMENTS"))
            sys.meta_path.remove(self)
sys.meta_path.insert(0, Watch())
import {program}.__main__
"""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    if given is not None:
        environment["GRPC_EXPERIMENTS"] = given

    done = subprocess.run(
        [sys.executable, "-c", probe], env=environment, check=True, capture_output=True, text=True
    )

    assert done.stdout.strip() == taken


def test_what_exists_when_the_heap_settles_is_not_collected_again() -> None:
    program = """
import gc
from omnistage_common.processes import settle_heap
settle_heap()
print(gc.get_freeze_count() > 1000, len(gc.get_objects()) < 1000, gc.isenabled())
"""

    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)

    assert done.stdout == b"True True True\n"
