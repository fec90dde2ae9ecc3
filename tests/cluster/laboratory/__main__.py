"""`python -m cluster.laboratory`: the laboratory cluster by hand, from the folder `tests`.

`make cluster` calls it. People use it to keep one cluster between test runs, or to look inside.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final, NoReturn

from cluster.laboratory import cgroups, lifecycle
from cluster.laboratory.building import ADD_ONS, MODULES, built, program_built
from cluster.laboratory.commands import program, run
from cluster.laboratory.instance import Instance
from cluster.laboratory.nodes import SimulatedNode, simulated
from cluster.laboratory.places import default_state
from omnistage_common.errors import SetupError

_EXAMPLES: Final = """examples, from the folder `tests`:
  python -m cluster.laboratory up                  start it; takes minutes the very first time
  export KUBECONFIG=$(python -m cluster.laboratory kubeconfig)
  python -m cluster.laboratory kubectl get pods -A
  python -m cluster.laboratory status              addresses, versions, memory, logs
  python -m cluster.laboratory shell               a shell inside the node
  python -m cluster.laboratory shell ctr -n k8s.io images ls
  python -m cluster.laboratory nodes 3 nvidia.com/gpu=8
  python -m cluster.laboratory down                stop it; nothing is left
"""

_COMMANDS: Final = {
    "up": "start the cluster, or find that it runs",
    "down": "stop it and remove all of it",
    "status": "say whether it runs, where, and what it uses; exit code 1: it does not run",
    "kubeconfig": "print the path of its kubeconfig file",
    "build": "build the programs and start nothing",
    "shell": "run a command, or a shell, inside the node",
    "nodes": "simulate nodes until interrupted: COUNT and then resources, such as nvidia.com/gpu=8",
    "kubectl": "run kubectl with the cluster's own credentials",
    "helm": "run helm with the cluster's own credentials",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; 0: done, 1: it could not be."""
    options = _parser().parse_args(arguments)
    state: Path = options.state.absolute()
    try:
        return _perform(options.command, state, options.arguments)
    except SetupError as error:
        _show(error.message)
        return 1


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:<11} {text}" for name, text in _COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m cluster.laboratory",
        description=f"A real Kubernetes cluster of one node, for tests.\n\ncommands:\n{listed}",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=default_state(),
        metavar="FOLDER",
        help="everything of the cluster; another folder is another cluster (default: %(default)s)",
    )
    parser.add_argument("command", choices=_COMMANDS, metavar="COMMAND")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="what shell, kubectl and helm run"
    )
    return parser


def _perform(command: str, state: Path, arguments: list[str]) -> int:
    match command:
        case "up":
            began = time.monotonic()
            instance = lifecycle.up(state, _show)
            _show(f"the cluster serves at {instance.url} after {time.monotonic() - began:.0f} s")
            sys.stdout.write(f"export KUBECONFIG={instance.kubeconfig}\n")
        case "down":
            _show("stopped" if lifecycle.down(state) else "there is no cluster")
        case "status":
            return _status(state)
        case "build":
            for module in (*MODULES, *ADD_ONS):
                sys.stdout.write(f"{built(module, _show)}\n")
        case "kubeconfig":
            sys.stdout.write(f"{_require_running(state).kubeconfig}\n")
        case "shell":
            _enter(_require_running(state), arguments or ["bash"])
        case "nodes":
            _simulate(_require_running(state), arguments)
        case _:
            config = {"KUBECONFIG": str(_require_running(state).kubeconfig)}
            path = program_built(command, _show)
            os.execve(path, [command, *arguments], {**os.environ, **config})  # noqa: S606 (no shell is wanted)
    return 0


def _simulate(instance: Instance, arguments: list[str]) -> None:
    count, *resources = arguments or ["1"]
    pairs = dict(word.split("=", 1) for word in resources)
    nodes = [SimulatedNode(name=f"simulated-{n}", resources=pairs) for n in range(int(count))]
    with simulated(instance.kubeconfig, *nodes):
        _show(f"{len(nodes)} simulated nodes are ready; interrupt to remove them")
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


def _require_running(state: Path) -> Instance:
    instance = lifecycle.running(state)
    if instance is None:
        raise SetupError(
            lifecycle.failure_of(state)
            or "The laboratory cluster does not run; start it: python -m cluster.laboratory up"
        )
    return instance


def _enter(instance: Instance, command: list[str]) -> NoReturn:
    assert instance.node is not None
    nsenter = program("nsenter")
    environment = {
        **os.environ,
        "KUBECONFIG": str(instance.kubeconfig),
        "PATH": f"{instance.programs}:{os.environ.get('PATH', os.defpath)}",
        "CONTAINERD_NAMESPACE": "k8s.io",
    }
    kinds = ("--mount", "--net", "--pid", "--uts", "--ipc")
    os.execve(  # noqa: S606 (no shell is wanted)
        nsenter, ["nsenter", "--target", str(instance.node.pid), *kinds, *command], environment
    )


def _status(state: Path) -> int:
    instance = _require_running(state)
    ranges = instance.ranges
    kubectl = (instance.programs / "kubectl", "--kubeconfig", instance.kubeconfig)
    memory = cgroups.memory_bytes(instance.identity)
    lines = {
        "api server": instance.url,
        "addresses": f"host {ranges.host}, pods {ranges.pods}, services {ranges.services}",
        "versions": ", ".join(f"{m.name} {m.version}" for m in MODULES if m.subject),
        "memory of the servers": f"{(memory or 0) / 2**20:.0f} MiB",
        "state": str(instance.state),
        "logs": str(instance.logs),
    }
    for title, text in lines.items():
        sys.stdout.write(f"{title + ':':<23}{text}\n")
    sys.stdout.write(run(*kubectl, "get", "nodes"))
    return 0


def _show(message: str, /) -> None:
    sys.stderr.write(f"laboratory: {message}\n")


if __name__ == "__main__":
    sys.exit(main())
