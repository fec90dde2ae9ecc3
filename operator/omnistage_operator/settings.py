"""What an operator process is told on its command line, parsed once."""

import argparse
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from omnistage_common.addresses import Address, address_argument
from omnistage_common.ids import EngineName
from omnistage_operator.planning.settings import OperatorSettings, PullPolicy

__all__ = ["ProcessSettings", "parse_settings"]

_EXAMPLES: Final = """\
examples:
  omnistage-operator --namespace omnistage --stage-image omnistage-stage:0.1.0
  omnistage-operator --kubeconfig ~/.kube/config --no-leader-election \\
      --stage-image omnistage-stage:0.1.0 --engine-image vllm=omnistage-stage-vllm:0.1.0

In a cluster, `helm install` starts it with these.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessSettings:
    """One operator's place in the world."""

    namespace: str
    """Its own: its lease is there."""
    watched: tuple[str, ...]
    """Namespaces whose pipelines it runs; none for all."""
    kubeconfig: Path | None
    """How to reach the API server; None for the pod's own account, or what kubectl would use."""
    context: str | None
    """Of the kubeconfig; None for its current one."""
    metrics: Address
    """Where metrics and health are served."""
    workers: int
    """Objects of a kind that are worked on at once."""
    lease: str | None
    """Name of the lease that lets one of several operators write; None to write without."""
    identity: str
    """Of this process; unique among operators."""
    log_level: str
    planning: OperatorSettings


def parse_settings(arguments: Sequence[str] | None = None) -> ProcessSettings:
    """The settings on a command line; prints usage and exits with 2 when they are wrong."""
    given = _parser().parse_args(arguments)
    namespace = given.namespace
    return ProcessSettings(
        namespace=namespace,
        watched=tuple(each for each in given.watch_namespaces.split(",") if each),
        kubeconfig=given.kubeconfig,
        context=given.context,
        metrics=given.metrics,
        workers=given.workers,
        lease=given.lease_name if given.leader_election else None,
        identity=os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}",
        log_level=given.log_level,
        planning=OperatorSettings(
            stage_image=given.stage_image,
            engine_images=dict(given.engine_image),
            pull_policy=PullPolicy(given.image_pull_policy) if given.image_pull_policy else None,
            pull_secrets=tuple(given.image_pull_secret),
            gateway_namespace=given.gateway_namespace or namespace,
            gateway_url=given.gateway_url,
        ),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="omnistage-operator",
        description="Turn pipeline resources into workloads, and say why when that is not possible.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--namespace", default="omnistage", help="its own namespace (default: omnistage)")
    add("--watch-namespaces", default="", help="namespaces of pipelines, A,B (default: all)")
    add("--kubeconfig", type=Path, help="file (default: the pod's account, or as kubectl)")
    add("--context", help="of the kubeconfig (default: its current one)")
    add("--stage-image", required=True, help="image of stages whose runtime names none")
    add(
        "--engine-image",
        type=_engine_image,
        action="append",
        default=[],
        metavar="ENGINE=IMAGE",
        help="the same for one engine; may be repeated",
    )
    add("--image-pull-policy", choices=[each.value for each in PullPolicy], help="of stages")
    add("--image-pull-secret", action="append", default=[], help="of stages; may be repeated")
    add("--gateway-namespace", default="", help="where gateways run (default: its own)")
    add("--gateway-url", default="", help="where clients reach the gateways")
    add(
        "--metrics",
        type=address_argument,
        default="0.0.0.0:8080",
        help="HOST:PORT of metrics and health (default: 0.0.0.0:8080)",
    )
    add("--workers", type=_positive, default=8, help="objects at once, of a kind (default: 8)")
    add(
        "--leader-election",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write only while holding the lease",
    )
    add("--lease-name", default="omnistage-operator", help="(default: omnistage-operator)")
    add("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return parser


def _engine_image(text: str) -> tuple[EngineName, str]:
    engine, _, image = text.partition("=")
    if not engine or not image:
        raise argparse.ArgumentTypeError(f"{text!r} is not ENGINE=IMAGE, e.g. vllm=my-stage:1")
    return EngineName(engine), image


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
