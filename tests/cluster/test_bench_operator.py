"""`omnistage bench operator`, small, on the real cluster; its nodes and its gateway are simulated."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import pytest

from cluster.definitions import applied
from cluster.laboratory.access import Cluster
from cluster.laboratory.commands import run

COMMAND: Final = (sys.executable, "-m", "omnistage_cli", "bench", "operator")


@pytest.fixture(scope="module", autouse=True)
def _definitions(cluster: Cluster) -> Iterator[None]:
    with applied(cluster):
        yield


def traces(cluster: Cluster) -> list[str]:
    """What a run has made, as far as it is outside its namespace."""
    kinds = "namespaces,nodes,pipelinetemplates,stageruntimes"
    found = cluster.call("get", kinds, "--output=name").split()
    return [name for name in found if "bench-operator-" in name]


@contextmanager
def begun(cluster: Cluster, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """The command, running; it is made to end with the block."""
    command = subprocess.Popen(
        (*COMMAND, *options),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
    )
    try:
        with command:
            yield command
    finally:
        command.kill()


@pytest.mark.timeout(300, func_only=True)
def test_a_run_tells_all_figures_and_an_idle_operator_writes_nothing(cluster: Cluster) -> None:
    printed = run(
        *COMMAND,
        "--pipelines=5",
        "--json",
        f"--kubeconfig={cluster.kubeconfig}",
        seconds=280,
        environment=cluster.environment,
    )

    report: dict[str, Any] = msgspec.json.decode(printed)
    assert report["pipelines"] == 5
    assert report["idle_writes"] == 0
    assert report["restart_pod_changes"] == 0
    for name in ("seconds_to_ready", "rss_mb", "cpu_seconds", "requests_per_pipeline"):
        assert report[name] > 0, name
    assert report["requests"]["patch deployments.apps"] >= 15
    assert report["reconciles"]["stage"] >= 15
    assert traces(cluster) == []


@pytest.mark.timeout(300, func_only=True)
def test_an_interrupted_run_leaves_nothing(cluster: Cluster) -> None:
    with begun(cluster, "--pipelines=5") as command:
        assert command.stderr is not None
        for line in command.stderr:
            if "5 pipelines" in line:
                break
        assert traces(cluster) != []
        command.send_signal(signal.SIGINT)
        rest = command.stderr.read()
        assert command.wait() == 1

    assert "nothing is left" in rest
    assert traces(cluster) == []


@pytest.mark.timeout(300, func_only=True)
def test_a_run_that_takes_too_long_says_what_it_waits_for_and_leaves_nothing(
    cluster: Cluster,
) -> None:
    with begun(cluster, "--pipelines=200", "--limit=8") as command:
        assert command.stderr is not None
        said = command.stderr.read()
        assert command.wait() == 1

    assert "--limit" in said
    assert "of 200 pipelines are ready" in said
    assert traces(cluster) == []
