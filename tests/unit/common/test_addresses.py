"""Addresses: what is accepted, and that they are printed as they were written."""

import pytest

from omnistage_common.addresses import Address, parse_address


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
