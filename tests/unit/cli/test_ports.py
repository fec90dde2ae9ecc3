"""Free ports, and what is said about those that are not."""

import socket
from pathlib import Path

import pytest

from omnistage_cli.runtime.ports import LOOPBACK, check_free, free_ports
from omnistage_common.errors import SetupError


def test_free_ports_differ_and_can_be_listened_on() -> None:
    ports = free_ports(20)

    assert len(set(ports)) == 20
    for port in ports:
        check_free(LOOPBACK, port)


def test_free_ports_are_not_ones_the_kernel_gives_to_outgoing_connections() -> None:
    fields = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    first = int(fields[0])
    if first < 20_000:
        pytest.skip("this machine gives nearly every port to outgoing connections")

    assert max(free_ports(20)) < first


def test_a_busy_port_is_refused_with_the_option_to_change() -> None:
    with socket.socket() as busy:
        busy.bind((LOOPBACK, 0))
        busy.listen()
        port = busy.getsockname()[1]

        with pytest.raises(SetupError, match=rf"port {port} .* in use.*--port") as caught:
            check_free(LOOPBACK, port)

    assert caught.value.field == "--port"


def test_a_host_that_is_not_ours_is_refused_with_the_option_to_change() -> None:
    with pytest.raises(SetupError, match="--host") as caught:
        check_free("192.0.2.1", 8000)

    assert caught.value.field == "--host"


def test_a_host_without_an_address_is_refused() -> None:
    with pytest.raises(SetupError, match="--host"):
        check_free("no-such-host.invalid", 8000)
