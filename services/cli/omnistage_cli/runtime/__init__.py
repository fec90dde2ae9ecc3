"""The local runtime: a plan as supervised processes on this machine."""

from omnistage_cli.runtime.directory import RunDirectory, default_directory
from omnistage_cli.runtime.display import Display, LiveDisplay, PlainDisplay, display_for
from omnistage_cli.runtime.interrupts import Interrupts, interrupts
from omnistage_cli.runtime.launching import GATEWAY, Launch, Member, Site
from omnistage_cli.runtime.local import LocalRuntime, Observer, Session, until_interrupted
from omnistage_cli.runtime.ports import LOOPBACK, check_free, free_ports
from omnistage_cli.runtime.supervision import ReplicaPhase, RestartPolicy, Supervision

__all__ = [
    "GATEWAY",
    "LOOPBACK",
    "Display",
    "Interrupts",
    "Launch",
    "LiveDisplay",
    "LocalRuntime",
    "Member",
    "Observer",
    "PlainDisplay",
    "ReplicaPhase",
    "RestartPolicy",
    "RunDirectory",
    "Session",
    "Site",
    "Supervision",
    "check_free",
    "default_directory",
    "display_for",
    "free_ports",
    "interrupts",
    "until_interrupted",
]
