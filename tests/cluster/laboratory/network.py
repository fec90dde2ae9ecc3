"""The link between the host and a node, and the host's routes to pods and services.

The node has a network namespace of its own: the firewall rules of kube-proxy and the bridge of the
pods are in there and vanish with it, and so do the link and the routes. A cluster takes the first
addresses that the host has no route to, so clusters can stand side by side.
"""

import json
from ipaddress import IPv4Network, ip_network
from pathlib import Path

from cluster.laboratory.commands import program, run
from cluster.laboratory.instance import Instance, Ranges
from omnistage_common.errors import SetupError

__all__ = ["connect_host", "connect_node", "free_ranges", "link_exists", "remove_link"]


def free_ranges() -> Ranges:
    """The first addresses that collide with nothing; hold a lock until the link is made.

    Raises:
        SetupError: All are taken.
    """
    taken = _routes()
    for number in range(Ranges.COUNT):
        ranges = Ranges(number=number)
        if not any(mine.overlaps(other) for mine in ranges.networks for other in taken):
            return ranges
    raise SetupError(
        f"All {Ranges.COUNT} address ranges of laboratory clusters are in use on this machine; "
        "`ip route` shows by whom. Stop a cluster with `python -m cluster.laboratory down`"
    )


def _routes() -> list[IPv4Network]:
    table = json.loads(run(program("ip"), "-json", "-4", "route", "show", "table", "all") or "[]")
    known = (ip_network(route["dst"], strict=False) for route in table if route["dst"] != "default")
    return [network for network in known if isinstance(network, IPv4Network)]


def connect_host(instance: Instance, node_pid: int) -> None:
    """Makes the link, hands one end to the node's namespace and routes pods and services there."""
    ranges, ip = instance.ranges, program("ip")
    here = _link(instance.identity)
    peer = ("peer", "name", "eth0", "netns", str(node_pid))
    run(ip, "link", "add", here, "type", "veth", *peer)
    run(ip, "address", "add", f"{ranges.host}/{ranges.link.prefixlen}", "dev", here)
    run(ip, "link", "set", here, "up")
    for network in (ranges.pods, ranges.services):
        run(ip, "route", "add", str(network), "via", str(ranges.node), "dev", here)


def connect_node(instance: Instance) -> None:
    """Sets the node's end of the link up; runs in the node."""
    ranges, ip = instance.ranges, program("ip")
    run(ip, "link", "set", "lo", "up")
    run(ip, "address", "add", f"{ranges.node}/{ranges.link.prefixlen}", "dev", "eth0")
    run(ip, "link", "set", "eth0", "up")
    run(ip, "route", "add", "default", "via", str(ranges.host))
    settings = {"ipv4/ip_forward": "1", "bridge/bridge-nf-call-iptables": "1"}
    for name, value in settings.items():
        (Path("/proc/sys/net") / name).write_text(value, encoding="ascii")


def link_exists(identity: str) -> bool:
    """Whether the host's end of a cluster's link is there."""
    return (Path("/sys/class/net") / _link(identity)).exists()


def remove_link(identity: str) -> None:
    """Removes the link of a cluster whose node is gone; the kernel does so too, in its own time."""
    if not link_exists(identity):
        return
    try:
        run(program("ip"), "link", "delete", _link(identity))
    except SetupError:
        if link_exists(identity):
            raise


def _link(identity: str) -> str:
    return f"olab{identity}"
