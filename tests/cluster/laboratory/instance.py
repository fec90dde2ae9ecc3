"""One cluster as a value: its name, its addresses and where its files are.

It is decided when the cluster is made and written to the state folder, where every later command
finds it. Nothing here touches the machine.
"""

import hashlib
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

__all__ = ["DOMAIN", "NODE", "Instance", "Ranges", "Started", "identity_of", "loaded"]

NODE: Final = "laboratory"
"""Name of the one real node."""

DOMAIN: Final = "cluster.local"

_RECORD: Final = "instance.json"


class Ranges(Struct, frozen=True, kw_only=True):
    """The addresses of a cluster; clusters with different numbers share none."""

    number: int
    """0 to `COUNT` - 1."""

    COUNT = 12

    @property
    def link(self) -> IPv4Network:
        """Joins the host and the node."""
        return IPv4Network(f"10.232.{self.number}.0/30")

    @property
    def host(self) -> IPv4Address:
        """The host, as node and pods see it."""
        return self.link[1]

    @property
    def node(self) -> IPv4Address:
        """The node, and with it the API server."""
        return self.link[2]

    @property
    def pods(self) -> IPv4Network:
        """Pods, of the real node only."""
        return IPv4Network(f"10.{200 + self.number}.0.0/16")

    @property
    def services(self) -> IPv4Network:
        """Cluster IPs of services."""
        return IPv4Network(f"10.{216 + self.number}.0.0/16")

    @property
    def api(self) -> IPv4Address:
        """Cluster IP of the service `kubernetes`."""
        return self.services[1]

    @property
    def dns(self) -> IPv4Address:
        """Cluster IP of the service `kube-dns`."""
        return self.services[10]

    @property
    def networks(self) -> tuple[IPv4Network, ...]:
        """Everything that the host must have no other route to."""
        return (self.link, self.pods, self.services)


class Started(Struct, frozen=True, kw_only=True):
    """A process, told from a later one that got the same number."""

    pid: int
    ticks: int
    """When it started: clock ticks after the machine did."""


class Instance(Struct, frozen=True, kw_only=True):
    """One cluster."""

    state: Path
    """Folder of everything that belongs to it."""
    ranges: Ranges
    node: Started | None = None
    """Process 1 of the node; None until it runs."""

    @property
    def identity(self) -> str:
        """Names what the kernel holds for this cluster: control groups and links."""
        return identity_of(self.state)

    @property
    def url(self) -> str:
        """The API server, for the host and for the node."""
        return f"https://{self.ranges.node}:6443"

    @property
    def kubeconfig(self) -> Path:
        """Credentials of the administrator."""
        return self.state / "kubeconfig"

    @property
    def certificates(self) -> Path:
        """Keys and certificates."""
        return self.state / "certificates"

    @property
    def settings(self) -> Path:
        """Configuration files of the servers."""
        return self.state / "settings"

    @property
    def logs(self) -> Path:
        """One file for each server."""
        return self.state / "logs"

    @property
    def programs(self) -> Path:
        """Links to the programs that the node runs."""
        return self.state / "programs"

    def save(self) -> None:
        """Writes the record that `loaded` reads."""
        unfinished = self.state / f".{_RECORD}"
        unfinished.write_bytes(msgspec.json.encode(self, enc_hook=str))
        unfinished.rename(self.state / _RECORD)


def identity_of(state: Path) -> str:
    """Eight hexadecimal digits that stand for a state folder."""
    return hashlib.sha256(str(state).encode()).hexdigest()[:8]


def loaded(state: Path) -> Instance | None:
    """The instance of a state folder; None when there is none."""
    try:
        record = (state / _RECORD).read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(record, type=Instance, dec_hook=lambda kind, value: kind(value))
