"""Addresses: what is accepted, and that they are printed as they were written."""

from socket import AF_INET, AF_INET6, create_server

import pytest

from omnistage_common.addresses import Address, parse_address, reachable


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8000", "127.0.0.1", 8000),
        ("localhost:0", "localhost", 0),
        ("[::1]:65535", "::1", 65535),
        ("thinker-0.thinker:7001", "thinker-0.thinker", 7001),
    ],
)
def test_an_address_is_parsed_and_printed_back(text: str, host: str, port: int) -> None:
    address = parse_address(text)

    assert address == Address(host=host, port=port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8000",
        ":8000",
        "localhost",
        "localhost:",
        "localhost:http",
        "localhost:65536",
        "localhost:-1",
        "localhost: 80",
        "[::1]",
        "[::1:80",
        "::1]:80",
        "[]:80",
        "::1:80",
    ],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not HOST:PORT, e\.g\. 127\.0\.0\.1:8000"):
        parse_address(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.7", "thinker-0.thinker", "::1"])
def test_an_address_of_its_own_is_the_one_that_others_use(host: str) -> None:
    address = Address(host=host, port=7001)

    assert reachable(address) == address


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::"])  # noqa: S104 - not bound to
def test_a_wildcard_stands_for_an_address_of_this_host(wildcard: str) -> None:
    found = reachable(Address(host=wildcard, port=7001))

    assert found.port == 7001
    assert found.host not in {"", "0.0.0.0", "::"}  # noqa: S104 - not bound to
    with create_server((found.host, 0), family=AF_INET6 if ":" in found.host else AF_INET):
        pass
