"""Starts a cluster, finds a running one, and stops one so that nothing of it is left.

Everything that belongs to a cluster is in its state folder, in its namespaces (held by one process)
or in control groups and a link that are named after the folder. So `down` needs no memory of what
was started, and works on a cluster whose start was cut short too. The folder's lock is held during
`up` and `down`: of two at a time, the second finds what the first has made.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final

from msgspec.structs import replace

from cluster.laboratory import cgroups, network, node
from cluster.laboratory.archives import pause_archive
from cluster.laboratory.building import MODULES, Report, built
from cluster.laboratory.certificates import write_certificates
from cluster.laboratory.commands import program, run
from cluster.laboratory.instance import NODE, Instance, Started, identity_of, loaded
from cluster.laboratory.places import cache_folder, locked, require_visible
from cluster.laboratory.settings import write_settings
from omnistage_common.errors import SetupError

__all__ = ["down", "failure_of", "held", "is_running", "require_machine", "running", "up"]

_TESTS: Final = Path(__file__).parents[2]
_READY: Final = "ready"
"""In the state folder once `up` is done."""
_NODE_READY_SECONDS: Final = 120
_END_SECONDS: Final = 60.0
"""Deadline for the kernel to end every process of a cluster; well under a second as a rule."""


def require_machine() -> None:
    """Raises a `SetupError` that names the remedy when no cluster can run here."""
    if sys.platform != "linux":
        raise SetupError("The laboratory cluster needs Linux; set KUBECONFIG to use a cluster")
    if os.geteuid() != 0:
        raise SetupError(
            "The laboratory cluster must be started by root (it makes namespaces, mounts and "
            "links); use sudo, or set KUBECONFIG to use a cluster of your own"
        )
    for name in ("containerd", "ctr", "runc", "ip", "iptables", "mount", "nsenter", "unshare"):
        program(name)


def up(state: Path, report: Report) -> Instance:
    """Starts the cluster of a state folder, or returns the one that runs there.

    Raises:
        SetupError: It cannot run here or did not start; nothing is left of it.
    """
    with ExitStack() as until_it_runs:
        return _up(state, report, until_it_runs, node.LINKED)


@contextmanager
def held(state: Path, report: Report) -> Iterator[Instance]:
    """A cluster for the length of a block, and no longer than this process lives: killed or not.

    Raises:
        SetupError: As `up`.
    """
    try:
        with ExitStack() as owner:
            yield _up(state, report, owner, node.OWNED)
    finally:
        down(state)


def _up(state: Path, report: Report, owner: ExitStack, order: str) -> Instance:
    require_machine()
    require_visible(state)
    require_visible(cache_folder())
    with locked(state):
        instance = running(state)
        if instance is not None:
            return instance
        _clear(state)
        with ExitStack() as undo:
            undo.callback(_clear, state)
            undo.callback(_keep_logs, state)
            instance = _started(state, report, owner, order)
            undo.pop_all()
        return instance


def running(state: Path) -> Instance | None:
    """The cluster of a state folder, when it runs and its start was completed."""
    instance = loaded(state)
    if instance is None or not (state / _READY).exists() or not is_running(instance):
        return None
    return instance


def is_running(instance: Instance) -> bool:
    """Whether process 1 of the node lives."""
    return instance.node is not None and _started_ticks(instance.node.pid) == instance.node.ticks


def failure_of(state: Path) -> str:
    """Why a cluster ended by itself; empty when it did not."""
    try:
        return (state / node.FAILURE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def down(state: Path) -> bool:
    """Stops the cluster of a state folder and removes all of it; returns whether there was one."""
    if not state.exists() and not cgroups.leftovers(identity_of(state)):
        return False
    with locked(state):
        _clear(state)
        state.rmdir()
    return True


def _clear(state: Path) -> None:
    instance = loaded(state)
    if instance is not None and instance.node is not None:
        _end(instance.node)
    identity = identity_of(state)
    cgroups.remove(identity)
    network.remove_link(identity)
    for child in state.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()


def _end(process: Started) -> None:
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if _started_ticks(process.pid) != process.ticks:
            return
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        if not select.select([handle], [], [], _END_SECONDS)[0]:
            raise SetupError(f"Process {process.pid} did not end within {_END_SECONDS:.0f} s")
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def _started_ticks(pid: int) -> int:
    """When a process started; 0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # The name, in parentheses, may hold anything; fields are counted from behind it.
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def _keep_logs(state: Path) -> None:
    if (state / "logs").exists():
        shutil.copytree(state / "logs", cache_folder() / "logs-of-failure", dirs_exist_ok=True)


def _started(state: Path, report: Report, owner: ExitStack, order: str) -> Instance:
    folders = [built(module, report) for module in MODULES]
    with ExitStack() as stack:
        # The lock reserves the addresses until the link takes them.
        with locked(cache_folder() / "addresses"):
            cgroups.sweep()
            instance = Instance(state=state, ranges=network.free_ranges())
            _furnish(instance, folders)
            process = stack.enter_context(_launched(instance))
            assert process.stdin is not None
            assert process.stdout is not None
            instance = _linked(instance, process.stdin, process.stdout, order)
        _await_serving(instance, process.stdout, report)
        _complete(instance)
        owner.enter_context(stack.pop_all())
    return instance


def _furnish(instance: Instance, folders: list[Path]) -> None:
    instance.logs.mkdir()
    instance.programs.mkdir()
    for folder in folders:
        for file in folder.iterdir():
            (instance.programs / file.name).symlink_to(file)
    write_certificates(instance)
    write_settings(instance)
    pause_archive(instance.programs / "pause", instance.state / node.PAUSE_ARCHIVE)
    instance.save()


def _launched(instance: Instance) -> subprocess.Popen[str]:
    namespaces = ("--pid", "--mount", "--net", "--uts", "--ipc", "--kill-child", "--fork")
    python = (sys.executable, "-m", "cluster.laboratory.node", str(instance.state))
    # setsid: the node outlives this command, its terminal and its interrupts.
    command = ("setsid", "--fork", str(program("unshare")), *namespaces, *python)
    with (instance.logs / "node.log").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=_TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


def _linked(instance: Instance, orders: IO[str], words: IO[str], order: str) -> Instance:
    word, _, rest = words.readline().strip().partition(" ")
    if word != node.INSIDE:
        raise _did_not_start(instance, rest)
    pid = int(rest)
    known = replace(instance, node=Started(pid=pid, ticks=_started_ticks(pid)))
    known.save()
    network.connect_host(known, pid)
    orders.write(f"{order}\n")
    orders.flush()
    return known


def _await_serving(instance: Instance, words: IO[str], report: Report) -> None:
    for line in words:
        word, _, rest = line.strip().partition(" ")
        match word:
            case node.SAY:
                report(rest)
            case node.SERVING:
                return
            case _:
                raise _did_not_start(instance, rest)
    raise _did_not_start(instance, "")


def _did_not_start(instance: Instance, said: str) -> SetupError:
    log = (instance.logs / "node.log").read_text(encoding="utf-8")
    return SetupError(f"The laboratory cluster did not start: {said or log[-2000:]}")


def _complete(instance: Instance) -> None:
    kubectl = (instance.programs / "kubectl", "--kubeconfig", instance.kubeconfig)
    deadline = f"--timeout={_NODE_READY_SECONDS}s"
    run(*kubectl, "wait", "--for=create", f"node/{NODE}", deadline)
    run(*kubectl, "wait", "--for=condition=Ready", f"node/{NODE}", deadline)
    run(*kubectl, "wait", "--for=create", "serviceaccount/default", deadline)
    (instance.state / _READY).touch()
