"""What a gateway process is told on its command line, parsed once."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from omnistage_common.addresses import Address, address_argument
from omnistage_common.errors import SetupError
from omnistage_common.ids import ReplicaId, StageName

__all__ = ["GatewaySettings", "ReplicaEndpoint", "parse_settings", "read_endpoints"]

_MIB: Final = 1024 * 1024
_LARGEST_BODY: Final = 48 * _MIB
"""A conversation travels within one message of a link, which gRPC refuses at 64 MiB."""

_EXAMPLES = """\
examples:
  python -m omnistage_gateway --plan plan.json --endpoints endpoints.json --listen 127.0.0.1:8000

endpoints.json names the replicas of each stage:
  {"replicas": [{"stage": "thinker", "replica": "thinker-0", "address": "127.0.0.1:7001"}]}

`omnistage up FILE` writes both files and starts everything by itself.
"""


class ReplicaEndpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a replica is."""

    stage: StageName
    replica: ReplicaId
    address: str
    """`HOST:PORT` of its gRPC service."""


class _Endpoints(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    replicas: tuple[ReplicaEndpoint, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewaySettings:
    """One gateway's place in the world, and its bounds."""

    plan: Path
    endpoints: Path
    listen: Address
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
    add("--plan", type=Path, required=True, help="the pipeline's plan (JSON)")
    add("--endpoints", type=Path, required=True, help="the replicas of each stage (JSON)")
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
    add("--exit-with-parent", action="store_true", help="end when the parent process ends")
    add("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    given = parser.parse_args(arguments)
    if given.max_body_mib > _LARGEST_BODY:
        parser.error("--max-body-mib must be at most 48: a text that long no longer fits a message")
    if given.body_budget_mib < given.max_body_mib:
        parser.error("--body-budget-mib must be at least --max-body-mib")
    return GatewaySettings(
        plan=given.plan,
        endpoints=given.endpoints,
        listen=given.listen,
        max_requests=given.max_requests,
        max_body_bytes=given.max_body_mib,
        body_budget_bytes=given.body_budget_mib,
        slab_bytes=given.slab_mib,
        tensors=given.tensors,
        exit_with_parent=given.exit_with_parent,
        log_level=given.log_level,
    )


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
