"""What a gateway process is told on its command line, parsed once."""

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from omnistage_common.addresses import Address, address_argument
from omnistage_common.errors import SetupError
from omnistage_gateway.replicas.endpoints import ReplicaEndpoint

__all__ = [
    "ClusterSource",
    "FileSource",
    "GatewaySettings",
    "parse_settings",
    "read_endpoints",
]

_MIB: Final = 1024 * 1024
_LARGEST_BODY: Final = 48 * _MIB
"""A conversation travels within one message of a link, which gRPC refuses at 64 MiB."""

_EXAMPLES = """\
examples:
  one pipeline, whose replicas a file names:
    omnistage-gateway --plan plan.json --endpoints endpoints.json --listen 127.0.0.1:8000

  in a cluster, all pipelines that there are, as they come and go:
    omnistage-gateway --cluster --name $POD_NAME --listen 0.0.0.0:8000 --tensors $POD_IP:7100

  in a cluster, those of two namespaces; from outside, with credentials of one's own:
    omnistage-gateway --cluster --name $POD_NAME --namespaces models,lab --listen 0.0.0.0:8000
    omnistage-gateway --cluster --name me --kubeconfig ~/.kube/config --listen 127.0.0.1:8000

endpoints.json names the replicas of each stage:
  {"replicas": [{"stage": "thinker", "replica": "thinker-0", "address": "127.0.0.1:7001"}]}

`omnistage up FILE` writes both files and starts everything by itself.
"""
_CLUSTER_LEAVES_AFTER: Final = 3.0
_HOUR: Final = 3600.0
_POD_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,98}[a-z0-9])?")
"""At most 100 characters: with what stands before it, it must be the name of a field manager."""
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class _Endpoints(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    replicas: tuple[ReplicaEndpoint, ...]


class FileSource(Struct, frozen=True, kw_only=True):
    """One pipeline, as files name it."""

    plan: Path
    endpoints: Path


class ClusterSource(Struct, frozen=True, kw_only=True):
    """All pipelines of a cluster."""

    name: str
    """Of this gateway's pod."""
    namespaces: tuple[str, ...] = ()
    """Those that are looked at; all when there are none."""
    kubeconfig: Path | None = None
    """Where the API server and credentials are named; None for those of the pod."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewaySettings:
    """One gateway's place in the world, and its bounds."""

    source: FileSource | ClusterSource
    listen: Address
    leave_after: float
    """Seconds after a stop signal for which requests are still let in."""
    max_requests: int
    """Requests inside at once; one more is refused with 429."""
    max_body_bytes: int
    """A larger body is refused with 413."""
    body_budget_bytes: int
    """Bodies inside at once may add up to this."""
    slab_bytes: int
    """Shared memory for the media of requests."""
    tensors: Address | None
    """Where stages on other hosts fetch them; None where there are none."""
    exit_with_parent: bool
    log_level: str


def parse_settings(arguments: Sequence[str] | None = None) -> GatewaySettings:
    """The settings on a command line; prints usage and exits with 2 when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="omnistage-gateway",
        description="Speak the OpenAI API and sequence requests over the stages of a pipeline.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    _add_sources(parser)
    add("--listen", type=address_argument, required=True, help="HOST:PORT of the HTTP service")
    add("--max-requests", type=_count, default=1024, help="requests at once (default: 1024)")
    add("--max-body-mib", type=_mib, default="25", help="largest body in MiB (default: 25)")
    add("--body-budget-mib", type=_mib, default="256", help="all bodies at once (default: 256)")
    add("--slab-mib", type=_mib, default="256", help="shared memory for media (default: 256)")
    add(
        "--tensors",
        type=address_argument,
        help="HOST:PORT at which stages on other hosts fetch media (default: none)",
    )
    add(
        "--leave-after",
        type=_seconds,
        metavar="SECONDS",
        help="after a stop signal let requests in for so long, while load balancers learn of it"
        f" (default: 0, {_CLUSTER_LEAVES_AFTER:g} with --cluster)",
    )
    add("--exit-with-parent", action="store_true", help="end when the parent process ends")
    add("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    given = parser.parse_args(arguments)
    if given.max_body_mib > _LARGEST_BODY:
        parser.error("--max-body-mib must be at most 48: a text that long no longer fits a message")
    if given.body_budget_mib < given.max_body_mib:
        parser.error("--body-budget-mib must be at least --max-body-mib")
    leave_after = given.leave_after
    if leave_after is None:
        leave_after = _CLUSTER_LEAVES_AFTER if given.cluster else 0.0
    return GatewaySettings(
        source=_source(parser, given),
        listen=given.listen,
        leave_after=leave_after,
        max_requests=given.max_requests,
        max_body_bytes=given.max_body_mib,
        body_budget_bytes=given.body_budget_mib,
        slab_bytes=given.slab_mib,
        tensors=given.tensors,
        exit_with_parent=given.exit_with_parent,
        log_level=given.log_level,
    )


def _add_sources(parser: argparse.ArgumentParser) -> None:
    files = parser.add_argument_group("one pipeline, from files")
    files.add_argument("--plan", type=Path, help="the pipeline's plan (JSON)")
    files.add_argument("--endpoints", type=Path, help="the replicas of each stage (JSON)")
    cluster = parser.add_argument_group("all pipelines of a Kubernetes cluster")
    cluster.add_argument("--cluster", action="store_true", help="follow the cluster's API server")
    cluster.add_argument("--name", help="name of this gateway's pod, under which it reports")
    cluster.add_argument(
        "--namespaces", help="those to look at, separated by commas (default: all)"
    )
    cluster.add_argument(
        "--kubeconfig", type=Path, help="credentials (default: the pod's service account)"
    )


def _source(
    parser: argparse.ArgumentParser, given: argparse.Namespace
) -> FileSource | ClusterSource:
    files = {"--plan": given.plan, "--endpoints": given.endpoints}
    in_cluster = {
        "--name": given.name,
        "--namespaces": given.namespaces,
        "--kubeconfig": given.kubeconfig,
    }
    if not given.cluster:
        foreign = [option for option, value in in_cluster.items() if value is not None]
        if foreign:
            parser.error(f"{foreign[0]} is for a cluster: give --cluster too, or leave it out")
        missing = [option for option, value in files.items() if value is None]
        if missing:
            parser.error(
                f"{' and '.join(missing)} must be given: a pipeline comes from --plan and"
                " --endpoints, or all of them from --cluster"
            )
        return FileSource(plan=given.plan, endpoints=given.endpoints)
    foreign = [option for option, value in files.items() if value is not None]
    if foreign:
        parser.error(f"{foreign[0]} and --cluster exclude each other: leave one of them out")
    if given.name is None:
        parser.error("--cluster needs --name: the name of this gateway's pod, e.g. $POD_NAME")
    if not _POD_NAME.fullmatch(given.name):
        parser.error(
            f"--name {given.name!r} is not the name of a pod of at most 100 characters;"
            " give $POD_NAME"
        )
    namespaces = tuple(given.namespaces.split(",")) if given.namespaces else ()
    for namespace in namespaces:
        if not _NAMESPACE.fullmatch(namespace):
            parser.error(f"--namespaces: {namespace!r} is not the name of a namespace")
    return ClusterSource(name=given.name, namespaces=namespaces, kubeconfig=given.kubeconfig)


def _seconds(text: str) -> float:
    """A length of time, at most an hour."""
    seconds = float(text)
    if not 0 <= seconds <= _HOUR:
        raise ValueError(text)
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise ValueError(text)
    return count


def _mib(text: str) -> int:
    """Bytes of a positive number of MiB."""
    size = float(text) * _MIB
    if not 1 <= size < math.inf:
        raise ValueError(text)
    return int(size)


def read_endpoints(path: Path) -> tuple[ReplicaEndpoint, ...]:
    """The replicas that the file names.

    Raises:
        SetupError: It cannot be read, or is not what `--help` shows.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Endpoints).replicas
    except OSError as unreadable:
        raise SetupError(
            f"cannot read the endpoints {path}: {unreadable.strerror}", field="--endpoints"
        ) from unreadable
    except msgspec.DecodeError as malformed:
        raise SetupError(
            f"{path} does not name endpoints: {malformed}", field="--endpoints"
        ) from malformed
