"""Clusters of these tests' own come up, go down without a trace, and survive what may happen to them.

They stand beside the cluster of the other tests, as those of two people on one machine would.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.laboratory import cgroups, images, lifecycle, network
from cluster.laboratory.access import reached
from cluster.laboratory.building import MODULES, Report, built
from cluster.laboratory.commands import program, run
from cluster.laboratory.instance import Instance, loaded
from omnistage_common.errors import SetupError

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def machine(report: Report) -> None:
    """A machine that can run a laboratory; who brings a cluster of their own need not have one."""
    if os.environ.get("OMNISTAGE_SKIP_CLUSTER") == "1":
        pytest.skip("OMNISTAGE_SKIP_CLUSTER=1")
    try:
        lifecycle.require_machine()
    except SetupError as error:
        if "KUBECONFIG" in os.environ:
            pytest.skip(error.message)
        pytest.fail(error.message, pytrace=False)
    for module in MODULES:
        built(module, report)


@pytest.fixture
def state(machine: None, tmp_path: Path) -> Iterator[Path]:  # noqa: ARG001 (required first)
    """A state folder whose cluster, if any, is stopped after the test."""
    folder = tmp_path / "state"
    yield folder
    lifecycle.down(folder)


def quiet(_line: str, /) -> None:
    """Takes progress that nobody waits for."""


def node_pid(instance: Instance) -> int:
    """Process 1 of the node, as the host numbers it."""
    assert instance.node is not None
    return instance.node.pid


def wait_for_end(pid: int) -> None:
    """Returns when a process is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], 60)[0], f"process {pid} goes on"
    finally:
        os.close(handle)


def members(namespace: str) -> list[str]:
    """Processes in a process namespace."""
    found = []
    for link in Path("/proc").glob("[0-9]*/ns/pid"):
        try:
            if str(link.readlink()) == namespace:
                found.append(link.parts[2])
        except OSError:
            continue
    return found


def traces(instance: Instance) -> dict[str, object]:
    """What a cluster may leave on a machine, by kind; empty values where there is none."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    routes = run(program("ip"), "route", "show", "table", "all")
    return {
        "files": instance.state.exists(),
        "groups": cgroups.leftovers(instance.identity),
        "link": network.link_exists(instance.identity),
        "mounts": str(instance.state) in mounts,
        "routes": str(instance.ranges.pods) in routes,
    }


def rules_of_kubernetes() -> int:
    """How many firewall rules of Kubernetes the host has; a host may be a node of some cluster."""
    listed = [run(program("iptables"), "--table", table, "-S") for table in ("filter", "nat")]
    return "".join(listed).count("KUBE-")


def test_a_cluster_with_a_running_container_is_stopped_without_a_trace(state: Path) -> None:
    rules = rules_of_kubernetes()
    instance = lifecycle.up(state, quiet)
    cluster = reached(instance, quiet)
    cluster.load_image(images.BASE)
    cluster.call(
        "run", "sleeper", f"--image={images.BASE}", "--image-pull-policy=Never", "--", "sleep", "1h"
    )
    cluster.wait("condition=Ready", "pod/sleeper")
    inside = str(Path(f"/proc/{node_pid(instance)}/ns/pid").readlink())
    assert len(members(inside)) > 9
    assert rules_of_kubernetes() == rules, "kube-proxy's rules must stay in the node"

    assert lifecycle.down(state)

    assert members(inside) == []
    assert not any(traces(instance).values()), traces(instance)
    assert not lifecycle.down(state), "a second time there is nothing to stop"


def test_up_finds_the_cluster_that_runs(state: Path) -> None:
    first = lifecycle.up(state, quiet)

    second = lifecycle.up(state, quiet)

    assert second == first
    assert lifecycle.is_running(first)


def test_a_node_that_was_killed_is_replaced(state: Path) -> None:
    first = lifecycle.up(state, quiet)
    os.kill(node_pid(first), signal.SIGKILL)
    wait_for_end(node_pid(first))
    assert lifecycle.running(state) is None

    second = lifecycle.up(state, quiet)

    assert node_pid(second) != node_pid(first)
    assert "Ready" in reached(second, quiet).call("get", "nodes")


def test_a_server_that_ends_takes_the_node_with_it_and_the_reason_is_kept(state: Path) -> None:
    instance = lifecycle.up(state, quiet)
    pid = node_pid(instance)
    enter = (program("nsenter"), "--target", str(pid), "--mount", "--pid")

    run(*enter, "pkill", "--exact", "kube-scheduler")
    wait_for_end(pid)

    assert lifecycle.running(state) is None
    assert "kube-scheduler ended with code" in lifecycle.failure_of(state)


def test_an_up_that_was_killed_half_way_leaves_no_node_and_the_next_one_succeeds(
    state: Path,
) -> None:
    command = [sys.executable, "-m", "cluster.laboratory", "--state", str(state), "up"]
    with subprocess.Popen(command, cwd=TESTS, stderr=subprocess.PIPE, text=True) as starting:
        assert starting.stderr is not None
        assert "serve after" in starting.stderr.readline()
        half = loaded(state)
        starting.kill()
    assert half is not None
    wait_for_end(node_pid(half))

    whole = lifecycle.up(state, quiet)

    assert node_pid(whole) != node_pid(half)
    assert "Ready" in reached(whole, quiet).call("get", "nodes")


HOLD = """
import sys
from pathlib import Path
from cluster.laboratory.lifecycle import held
with held(Path(sys.argv[1]), print) as instance:
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_held_cluster_ends_with_its_owner_even_when_that_is_killed(state: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(state)]
    with subprocess.Popen(
        command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert "held\n" in iter(owner.stdout.readline, "")
        instance = lifecycle.running(state)
        assert instance is not None
        owner.kill()
    wait_for_end(node_pid(instance))

    cgroups.sweep()

    assert cgroups.leftovers(instance.identity) == []


def test_a_server_that_cannot_start_is_named_and_nothing_is_left(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = state.parent / "broken"
    broken.write_text("#!/bin/sh\necho no etcd today >&2\nexit 7\n", encoding="utf-8")
    broken.chmod(0o755)
    furnish = lifecycle._furnish

    def furnish_without_etcd(instance: Instance, folders: list[Path]) -> None:
        furnish(instance, folders)
        (instance.programs / "etcd").unlink()
        (instance.programs / "etcd").symlink_to(broken)

    monkeypatch.setattr(lifecycle, "_furnish", furnish_without_etcd)

    with pytest.raises(SetupError, match=r"etcd ended while it started.*no etcd today"):
        lifecycle.up(state, quiet)

    assert not state.exists() or list(state.iterdir()) == []


def test_the_command_line_says_where_the_cluster_is_and_runs_kubectl_in_it(state: Path) -> None:
    def laboratory(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cluster.laboratory", "--state", str(state), *words]
        return subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)

    assert "start it" in laboratory("status").stderr
    assert laboratory("up").stdout == f"export KUBECONFIG={state}/kubeconfig\n"
    assert laboratory("kubeconfig").stdout == f"{state}/kubeconfig\n"
    assert "memory of the servers" in laboratory("status").stdout
    assert "laboratory" in laboratory("kubectl", "get", "nodes", "-o", "name").stdout
    assert "pause" in laboratory("shell", "ctr", "images", "ls", "-q").stdout
    assert laboratory("down").returncode == 0
    assert laboratory("status").returncode == 1
