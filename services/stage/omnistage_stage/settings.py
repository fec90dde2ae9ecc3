"""What a stage process is told on its command line, parsed once."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omnistage_common.addresses import Address, address_argument
from omnistage_common.ids import ReplicaId
from omnistage_stage.engines.protocol import Gang

__all__ = ["StageSettings", "parse_settings"]

_EXAMPLES = """\
examples:
  python -m omnistage_stage --assignment thinker.json --replica thinker-0 \\
      --listen 127.0.0.1:7001 --metrics 127.0.0.1:9001

`omnistage up FILE` writes assignments and starts stages by itself; in a cluster the operator does,
and where a replica spans nodes it tells each of its processes which one it is:
  python -m omnistage_stage --assignment thinker.json --replica thinker-0-1 \\
      --listen 10.1.2.3:7001 --gang-leader thinker-0.thinker --gang-rank 1
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSettings:
    """One replica's place in the world."""

    assignment: Path
    """What the replica does, as JSON."""
    replica: ReplicaId | None
    """Its id; None for the first of its stage."""
    listen: Address
    """Where gRPC is served."""
    metrics: Address | None
    """Where metrics are served; None for nowhere."""
    gang: Gang | None
    """None where the replica is this one process."""
    exit_with_parent: bool
    """Ask the kernel to end this process when its parent ends."""
    log_level: str


def parse_settings(arguments: Sequence[str] | None = None) -> StageSettings:
    """The settings on a command line; prints usage and exits with 2 when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="omnistage-stage",
        description="Serve one replica of one stage.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--assignment", type=Path, required=True, help="what this replica does (JSON)"
    )
    parser.add_argument("--replica", help="id of this replica (default: STAGE-0)")
    parser.add_argument(
        "--listen", type=address_argument, required=True, help="HOST:PORT of the gRPC service"
    )
    parser.add_argument(
        "--metrics", type=address_argument, help="HOST:PORT of the metrics endpoint (default: none)"
    )
    parser.add_argument(
        "--gang-leader",
        metavar="HOST",
        help="where the first process of a replica on several nodes is",
    )
    parser.add_argument(
        "--gang-rank", type=int, metavar="NUMBER", help="which of its processes this is, from 0"
    )
    parser.add_argument(
        "--exit-with-parent", action="store_true", help="end when the parent process ends"
    )
    parser.add_argument(
        "--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"]
    )
    given = parser.parse_args(arguments)
    if (given.gang_leader is None) != (given.gang_rank is None):
        parser.error("--gang-leader and --gang-rank go together")
    return StageSettings(
        assignment=given.assignment,
        replica=ReplicaId(given.replica) if given.replica else None,
        listen=given.listen,
        metrics=given.metrics,
        gang=None
        if given.gang_leader is None
        else Gang(leader=given.gang_leader, rank=given.gang_rank),
        exit_with_parent=given.exit_with_parent,
        log_level=given.log_level,
    )
