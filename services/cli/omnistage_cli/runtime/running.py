"""From a plan to a run: what `omnistage up` and `omnistage demo` do alike.

It puts the parts together (port, run directory, display, signals, runtime) and owns none of them.
"""

import asyncio
import os
from pathlib import Path

from msgspec import Struct
from rich.console import Console

from omnistage_cli.runtime.directory import RunDirectory, default_directory
from omnistage_cli.runtime.display import display_for
from omnistage_cli.runtime.interrupts import interrupts
from omnistage_cli.runtime.launching import Launch, Site
from omnistage_cli.runtime.local import LocalRuntime, Session
from omnistage_cli.runtime.ports import check_free, free_ports
from omnistage_cli.runtime.supervision import RestartPolicy
from omnistage_common.addresses import Address
from omnistage_common.pipeline.plan import PipelinePlan
from omnistage_common.signals import FORCED_EXIT

__all__ = ["RunOptions", "run_plan"]


class RunOptions(Struct, frozen=True, kw_only=True):
    """How to run."""

    host: str
    """Where the gateway listens."""
    port: int
    """0 picks a free one."""
    state_directory: Path | None = None
    """None makes a new one."""
    launch: Launch = Launch()
    policy: RestartPolicy = RestartPolicy()


def run_plan(plan: PipelinePlan, options: RunOptions, session: Session, console: Console) -> int:
    """Runs a plan until its session ends or the user does.

    Returns:
        The exit code: 0, or 130 when the user did not wait for a clean end.

    Raises:
        SetupError: The port or the directory cannot be had, or a process does not start.
        OmnistageError: What the session raised.
    """
    if options.port:
        check_free(options.host, options.port)
    port = options.port or free_ports(1)[0]
    site = Site(listen=Address(host=options.host, port=port))
    root = options.state_directory or default_directory(plan.name, os.environ)
    directory = RunDirectory(root.absolute())
    with directory.locked():
        return asyncio.run(_run(plan, options, session, console, site=site, directory=directory))


async def _run(
    plan: PipelinePlan,
    options: RunOptions,
    session: Session,
    console: Console,
    *,
    site: Site,
    directory: RunDirectory,
) -> int:
    title = f"{plan.name} ({directory.root})"
    with interrupts() as interrupted, display_for(console, title, plan.served_names[0]) as display:
        runtime = LocalRuntime(
            plan, site, observer=display, launch=options.launch, policy=options.policy
        )
        await runtime.run(directory, interrupted, session)
    return FORCED_EXIT if interrupted.kill.is_set() else 0
