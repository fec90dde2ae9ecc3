"""A cluster as tests see it: the laboratory's, or one that its owner names in `KUBECONFIG`.

Tests need not know which. What only the laboratory can do says so (`is_laboratory`).
"""

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from cluster.laboratory import images, lifecycle
from cluster.laboratory.building import Report, program_built
from cluster.laboratory.commands import COMMAND_SECONDS, run
from cluster.laboratory.instance import NODE, Instance
from omnistage_common.errors import SetupError

__all__ = ["LOAD_IMAGE", "Cluster", "at_hand", "own", "reached"]

LOAD_IMAGE: Final = "OMNISTAGE_LOAD_IMAGE"
"""Variable: the command that gives an image to a cluster of one's own; `{archive}` is its file."""


class Cluster(Struct, frozen=True, kw_only=True):
    """A running cluster and the programs to use it."""

    kubeconfig: Path
    kubectl: Path
    helm: Path
    instance: Instance | None
    """None: the cluster is somebody's own."""
    report: Report

    @property
    def is_laboratory(self) -> bool:
        """Whether the node's files and programs can be reached."""
        return self.instance is not None

    @property
    def environment(self) -> dict[str, str]:
        """For programs of a test that use the cluster."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def call(
        self, *arguments: str, text: str | None = None, seconds: float = COMMAND_SECONDS
    ) -> str:
        """Runs kubectl and returns its output; `SetupError` with its words when it fails."""
        return run(
            self.kubectl, *arguments, text=text, seconds=seconds, environment=self.environment
        )

    def call_helm(self, *arguments: str, seconds: float = COMMAND_SECONDS) -> str:
        """Runs helm and returns its output; `SetupError` with its words when it fails."""
        return run(self.helm, *arguments, seconds=seconds, environment=self.environment)

    def get(self, *arguments: str) -> Any:
        """What `kubectl get` prints, as a value."""
        return msgspec.json.decode(self.call("get", *arguments, "--output=json"))

    def apply(self, *objects: Mapping[str, Any], namespace: str = "default") -> None:
        """Applies objects on the server's side."""
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        text = msgspec.json.encode(listed).decode()
        self.call("apply", "--server-side", f"--namespace={namespace}", "--filename=-", text=text)

    def wait(self, condition: str, *subjects: str, seconds: int = 60) -> None:
        """Waits as `kubectl wait --for=CONDITION` does; `SetupError` when the time is over."""
        limit = f"--timeout={seconds}s"
        self.call("wait", f"--for={condition}", limit, *subjects, seconds=seconds + 10)

    def load_image(self, tag: str) -> None:
        """Gives an image of `images.build`, or the base image, to the nodes.

        Raises:
            SetupError: The cluster is somebody's own and `OMNISTAGE_LOAD_IMAGE` does not say how.
        """
        if self.instance is not None:
            images.load(self.instance, tag, self.report)
            return
        command = os.environ.get(LOAD_IMAGE)
        if not command:
            raise SetupError(
                f"Set {LOAD_IMAGE} to the command that gives an image to your cluster, such as "
                f"{LOAD_IMAGE}='kind load image-archive {{archive}}'"
            )
        with tempfile.TemporaryDirectory() as scratch:
            archive = images.exported(tag, Path(scratch), self.report)
            run(*(word.format(archive=archive) for word in shlex.split(command)), seconds=600)

    def set_extended_resource(self, name: str, count: int | None, node: str = NODE) -> None:
        """Gives a node an accelerator that nobody has, for placement; None takes it away again."""
        amount = None if count is None else str(count)
        patch = {"status": {"capacity": {name: amount}, "allocatable": {name: amount}}}
        text = msgspec.json.encode(patch).decode()
        self.call("patch", "node", node, "--subresource=status", "--type=merge", f"--patch={text}")


@contextmanager
def at_hand(state: Path, report: Report) -> Iterator[Cluster]:
    """The cluster of `KUBECONFIG`, or a laboratory that is stopped when the block ends.

    Args:
        state: Folder for a laboratory that has to be started.
        report: Told what takes long.

    Raises:
        SetupError: Neither can be had; the message names the remedy.
    """
    kubeconfig = os.environ.get("KUBECONFIG")
    if kubeconfig:
        yield own(Path(kubeconfig.split(os.pathsep)[0]), report)
        return
    with lifecycle.held(state, report) as instance:
        yield reached(instance, report)


def own(kubeconfig: Path, report: Report) -> Cluster:
    """The cluster of a kubeconfig file; one of a running laboratory is known as such."""
    instance = lifecycle.running(kubeconfig.absolute().parent)
    if instance is not None:
        return reached(instance, report)
    cluster = Cluster(
        kubeconfig=kubeconfig,
        kubectl=_program("kubectl", report),
        helm=_program("helm", report),
        instance=None,
        report=report,
    )
    cluster.call("get", "--raw=/readyz", "--request-timeout=10s")
    return cluster


def reached(instance: Instance, report: Report) -> Cluster:
    """A running laboratory."""
    return Cluster(
        kubeconfig=instance.kubeconfig,
        kubectl=program_built("kubectl", report),
        helm=program_built("helm", report),
        instance=instance,
        report=report,
    )


def _program(name: str, report: Report) -> Path:
    found = shutil.which(name)
    return Path(found) if found else program_built(name, report)
