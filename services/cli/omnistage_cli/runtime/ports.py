"""Free ports on this machine.

Between picking a port and its use by a child somebody else may take it. Ports below the range from
which the kernel serves outgoing connections are not taken by accident. They also spare us a trap of
TCP: whoever keeps connecting to a dead port *within* that range will, one day, be given that very
port for its own end, reach itself, and keep the restarted server from its address.
"""

import contextlib
import errno
import secrets
import socket
from pathlib import Path
from typing import Final

from omnistage_common.errors import SetupError

__all__ = ["LOOPBACK", "check_free", "free_ports"]

LOOPBACK: Final = "127.0.0.1"

_LOWEST: Final = 10_240
_ATTEMPTS_PER_PORT: Final = 64


def free_ports(count: int) -> tuple[int, ...]:
    """That many different loopback ports on which nobody listens.

    Raises:
        SetupError: There are not so many.
    """
    candidates = _candidates(count * _ATTEMPTS_PER_PORT)
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        for candidate in candidates:
            if len(ports) == count:
                break
            bound = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            with contextlib.suppress(OSError):
                bound.bind((LOOPBACK, candidate))
                ports.append(bound.getsockname()[1])
    if len(ports) < count:
        raise SetupError(f"found {len(ports)} free ports on {LOOPBACK}, {count} are needed")
    return tuple(ports)


def check_free(host: str, port: int) -> None:
    """Makes sure that the gateway can listen.

    Raises:
        SetupError: It cannot; names the option to change.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            raise _cannot_listen(host, port, error) from error


def _cannot_listen(host: str, port: int, error: OSError) -> SetupError:
    if error.errno == errno.EADDRINUSE:
        return SetupError(
            f"port {port} on {host} is in use; choose another with --port, "
            "or let a free one be picked with --port 0",
            field="--port",
        )
    if error.errno == errno.EACCES:
        return SetupError(
            f"port {port} is reserved for root; choose one above 1023 with --port", field="--port"
        )
    return SetupError(
        f"cannot listen on host {host}: {error.strerror or error}; choose another with --host",
        field="--host",
    )


def _candidates(count: int) -> list[int]:
    """Ports to try, in random order; zeros, for the kernel to choose, where its range is all."""
    fields = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    below = range(_LOWEST, int(fields[0]))
    if len(below) < count:
        return [0] * count
    return secrets.SystemRandom().sample(below, count)
