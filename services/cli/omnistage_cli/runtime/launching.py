"""Which processes a plan becomes on this machine, as values.

One process per stage replica and one gateway. Their addresses are chosen once for the whole run: a
process that is started again gets the same, so nobody needs to be told. Nothing is started here.
"""

import sys
from pathlib import Path
from typing import Final

from msgspec import Struct

from omnistage_cli.runtime.directory import Endpoint, RunDirectory
from omnistage_cli.runtime.ports import LOOPBACK, free_ports
from omnistage_cli.runtime.processes import Command
from omnistage_common.addresses import Address
from omnistage_common.ids import ReplicaId, StageName
from omnistage_common.pipeline.plan import PipelinePlan, StagePlan

__all__ = ["GATEWAY", "Launch", "Member", "Site", "lay_out"]

GATEWAY: Final = "gateway"
"""Name of the gateway's row and log."""

_WILDCARDS: Final = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104  # compared with, not bound to
_STAGE_MARGIN: Final = 10.0
_GATEWAY_MARGIN: Final = 5.0


class Launch(Struct, frozen=True, kw_only=True):
    """Programs to run; the folder of the caller is kept from their import path."""

    stage: tuple[str, ...] = (sys.executable, "-P", "-m", "omnistage_stage")
    gateway: tuple[str, ...] = (sys.executable, "-P", "-m", "omnistage_gateway")


class Site(Struct, frozen=True, kw_only=True):
    """Where the gateway listens."""

    listen: Address

    @property
    def reachable(self) -> Address:
        """The address by which this machine reaches it."""
        host = self.listen.host
        return Address(host=_WILDCARDS.get(host, host), port=self.listen.port)

    @property
    def url(self) -> str:
        """The URL that clients on this machine use."""
        return f"http://{self.reachable}"


class Member(Struct, frozen=True, kw_only=True):
    """One process of the run."""

    name: str
    """The replica's id, or `gateway`."""
    stage: StageName | None
    """None for the gateway."""
    engine: str
    """What computes in it; empty for the gateway."""
    address: str
    """Where it listens."""
    command: Command
    grace: float
    """Seconds it may take to stop."""


def lay_out(
    plan: PipelinePlan, directory: RunDirectory, launch: Launch, site: Site
) -> tuple[Member, ...]:
    """The processes of a plan, the gateway last; writes the files that they read.

    Raises:
        SetupError: There are not enough free ports.
    """
    slots = [(stage, index) for stage in plan.stages for index in range(stage.replicas)]
    ports = free_ports(2 * len(slots))
    replicas = tuple(
        _replica(stage, index, listen=listen, metrics=metrics, directory=directory, launch=launch)
        for (stage, index), listen, metrics in zip(slots, ports[::2], ports[1::2], strict=True)
    )
    directory.write(
        plan,
        tuple(
            Endpoint(stage=stage.name, replica=ReplicaId(member.name), address=member.address)
            for (stage, _), member in zip(slots, replicas, strict=True)
        ),
    )
    return (*replicas, _gateway(plan, directory, launch, site))


def _replica(
    stage: StagePlan,
    index: int,
    *,
    listen: int,
    metrics: int,
    directory: RunDirectory,
    launch: Launch,
) -> Member:
    name = f"{stage.name}-{index}"
    address = str(Address(host=LOOPBACK, port=listen))
    arguments = (
        *launch.stage,
        *("--assignment", str(directory.assignment(stage.name))),
        *("--replica", name),
        *("--listen", address),
        *("--metrics", str(Address(host=LOOPBACK, port=metrics))),
        "--exit-with-parent",
    )
    return Member(
        name=name,
        stage=stage.name,
        engine=stage.engine,
        address=address,
        command=_command(arguments, stage.env, directory.new_log(name)),
        grace=_STAGE_MARGIN,
    )


def _gateway(plan: PipelinePlan, directory: RunDirectory, launch: Launch, site: Site) -> Member:
    address = str(site.listen)
    arguments = (
        *launch.gateway,
        *("--plan", str(directory.plan)),
        *("--endpoints", str(directory.endpoints)),
        *("--listen", address),
        "--exit-with-parent",
    )
    return Member(
        name=GATEWAY,
        stage=None,
        engine="",
        address=address,
        command=_command(arguments, {}, directory.new_log(GATEWAY)),
        grace=plan.timeouts.drain + _GATEWAY_MARGIN,
    )


def _command(arguments: tuple[str, ...], environment: dict[str, str], log: Path) -> Command:
    return Command(arguments=arguments, environment=environment, log=log)
