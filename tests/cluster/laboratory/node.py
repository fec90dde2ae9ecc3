"""Process 1 of the laboratory's node: `python -m cluster.laboratory.node STATE`, started by `up`.

It runs in process, mount and network namespaces of its own. That is the whole of cleaning up: when
this process ends, by itself or killed, the kernel ends every process of the cluster (containers too)
and drops its mounts, links and firewall rules.

It talks with `up` over its standard input and output, a line each way at a time:

    node    inside PID      the namespaces are there; PID is process 1 as the host numbers it
    up      linked          the link to the host is there
    up      owned           the same; and the node ends when its standard input does
    node    say TEXT        progress, for people
    node    serving         every server serves; its last word
    node    failed TEXT     it ends, this is why

A server that ends later ends the node: a cluster with a part missing would only make tests fail in
ways that are hard to read. The reason is left in the state folder.
"""

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final, NoReturn

from cluster.laboratory import cgroups, network
from cluster.laboratory.commands import program, run
from cluster.laboratory.instance import NODE, Instance, loaded
from cluster.laboratory.manifests import dns_objects
from cluster.laboratory.servers import Server, groups
from cluster.laboratory.settings import CONTAINERD_SOCKET
from omnistage_common.errors import SetupError

__all__ = [
    "FAILED",
    "FAILURE",
    "INSIDE",
    "LINKED",
    "OWNED",
    "PAUSE_ARCHIVE",
    "SAY",
    "SERVING",
    "main",
]

INSIDE: Final = "inside"
LINKED: Final = "linked"
OWNED: Final = "owned"
SAY: Final = "say"
SERVING: Final = "serving"
FAILED: Final = "failed"

FAILURE: Final = "failure.txt"
"""In the state folder: why the node ended, when it was not stopped."""

PAUSE_ARCHIVE: Final = "pause.tar"
"""In the state folder: the image of the container that holds a pod's namespaces."""

_START_SECONDS: Final = 120.0
"""Deadline for one group of servers; a few seconds on an idle machine."""
_ASK_EVERY: Final = 0.05
"""Seconds between two looks at a server that does not serve yet."""
_LOG_LINES: Final = 15

Running = dict[int, Server]
"""Process number -> what it runs."""


def main(state: Path) -> None:
    """Sets the node up, starts its servers, and returns when one of them has ended."""
    # This /proc is still the host's, so it tells the host's number of this process.
    pid = Path("/proc/self").readlink().name
    instance = loaded(state)
    assert instance is not None
    try:
        cgroups.enter(instance.identity)
        _mount(instance)
        socket.sethostname(NODE)
        _tell(f"{INSIDE} {pid}")
        order = sys.stdin.readline().strip()
        if order not in {LINKED, OWNED}:
            return
        network.connect_node(instance)
        running = _start(instance)
    except SetupError as error:
        _tell(f"{FAILED} {error.message}")
        return
    _tell(SERVING)
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, sys.stdout.fileno())
    if order == OWNED:
        threading.Thread(target=_end_with_owner, daemon=True).start()
    else:
        os.dup2(quiet, sys.stdin.fileno())
    _reap_until_a_server_ends(instance, running)


def _tell(line: str) -> None:
    sys.stdout.write(line.replace("\n", " | ") + "\n")
    sys.stdout.flush()


def _mount(instance: Instance) -> None:
    """Gives the node its own /proc, /run, /var/lib and /var/log; all else is the host's."""
    mount = program("mount")
    run(mount, "--make-rprivate", "/")
    run(mount, "--make-rshared", "/")
    run(mount, "-t", "proc", "proc", "/proc")
    run(mount, "-t", "tmpfs", "tmpfs", "/run")
    for name in ("lib", "log"):
        own = instance.state / "var" / name
        own.mkdir(parents=True)
        run(mount, "--bind", own, f"/var/{name}")
    containers = Path("/var/lib/containerd")
    containers.mkdir()
    if run("stat", "--file-system", "--format=%T", containers).strip() == "overlayfs":
        # Layers cannot be stacked on a file system that is stacked itself.
        run(mount, "-t", "tmpfs", "tmpfs", containers)


def _start(instance: Instance) -> Running:
    foundation, others = groups(instance)
    running = _start_group(instance, foundation)
    arguments = ("--address", CONTAINERD_SOCKET, "--namespace", "k8s.io", "images", "import")
    run(program("ctr"), *arguments, instance.state / PAUSE_ARCHIVE)
    kubectl = (instance.programs / "kubectl", "--kubeconfig", instance.kubeconfig)
    run(*kubectl, "apply", "--server-side", "--filename=-", text=json.dumps(dns_objects(instance)))
    return running | _start_group(instance, others)


def _start_group(instance: Instance, group: tuple[Server, ...]) -> Running:
    began = time.monotonic()
    started = [(server, _launch(instance, server)) for server in group]
    for server, process in started:
        _await_serving(instance, server, process)
    names = ", ".join(server.name for server in group)
    _tell(f"{SAY} {names} serve after {time.monotonic() - began:.1f} s")
    return {process.pid: server for server, process in started}


def _launch(instance: Instance, server: Server) -> subprocess.Popen[bytes]:
    search = f"{instance.programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    # Half the collections of garbage: a quarter less of the processors for somewhat more memory.
    environment = {"PATH": search, "HOME": "/root", "GOGC": "200"}
    with (instance.logs / f"{server.name}.log").open("ab") as log:
        return subprocess.Popen(
            server.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
        )


def _await_serving(instance: Instance, server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not _serves(server):
        if process.poll() is not None:
            raise SetupError(
                f"{server.name} ended while it started: {_last_words(instance, server)}"
            )
        if time.monotonic() > deadline:
            raise SetupError(
                f"{server.name} does not serve after {_START_SECONDS:.0f} s: "
                f"{_last_words(instance, server)}"
            )
        time.sleep(_ASK_EVERY)


def _serves(server: Server) -> bool:
    try:
        if server.socket:
            with socket.socket(socket.AF_UNIX) as door:
                door.connect(server.socket)
            return True
        trusting = ssl.create_default_context()
        trusting.check_hostname = False
        trusting.verify_mode = ssl.CERT_NONE
        with urllib.request.urlopen(server.url, timeout=5, context=trusting):  # noqa: S310 (ours)
            return True
    except (urllib.error.URLError, OSError):
        return False


def _last_words(instance: Instance, server: Server) -> str:
    log = instance.logs / f"{server.name}.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    return f"\n{chr(10).join(lines)}\n(all of it in {log})"


def _end_with_owner() -> None:
    """Waits for the end of the standard input, which comes when its other end is closed or dies."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(0)


def _reap_until_a_server_ends(instance: Instance, running: Running) -> None:
    while True:
        pid, status = os.wait()
        server = running.get(pid)
        if server is not None:
            code = os.waitstatus_to_exitcode(status)
            reason = f"{server.name} ended with code {code}: {_last_words(instance, server)}"
            (instance.state / FAILURE).write_text(reason, encoding="utf-8")
            return


def _run_as_program() -> NoReturn:
    main(Path(sys.argv[1]))
    sys.exit(1)


if __name__ == "__main__":
    _run_as_program()
