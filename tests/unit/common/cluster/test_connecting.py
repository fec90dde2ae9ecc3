"""How the way to the API server is found, and what is said when it is not."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import certifi
import pytest
from kubernetes.aio.config import incluster_config

from fakes.api_server import FakeApiServer
from omnistage_common.cluster.answers import refusal, retry_after_of
from omnistage_common.cluster.connecting import Address, Request, connect
from omnistage_common.cluster.errors import (
    AlreadyExists,
    ApiUnavailable,
    ObjectInvalid,
    WriteConflict,
)
from omnistage_common.cluster.lines import MAX_LINE_BYTES, lines_of
from omnistage_common.errors import SetupError

VERSION = Request(asked="get version", method="GET", path="/version")


async def test_a_kubeconfig_leads_to_the_server(server: FakeApiServer) -> None:
    async with connect(Address(kubeconfig=server.kubeconfig)) as connection:
        answer = json.loads(await connection.send(VERSION))

    assert answer["gitVersion"].startswith("v1.")


async def test_the_usual_variable_names_the_kubeconfig(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))

    async with connect() as connection:
        assert await connection.send(VERSION)


async def test_a_proxy_of_the_environment_is_asked_as_kubectl_does_and_no_proxy_is_heeded(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens where the proxy is said to be."""
    address = Address(kubeconfig=server.kubeconfig)
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    async with connect(address) as connection:
        with pytest.raises(ApiUnavailable):
            await connection.send(VERSION)

    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    async with connect(address) as connection:
        assert await connection.send(VERSION)


@pytest.mark.parametrize("text", ["", "{}", "[]", "{unclosed", "current-context: x"])
async def test_a_file_that_leads_nowhere_says_so(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)

    with pytest.raises(SetupError, match="kubeconfig does not say how to reach an API server"):
        async with connect(Address(kubeconfig=file)):
            pass


async def test_a_missing_file_and_a_missing_context_say_so(
    tmp_path: Path, server: FakeApiServer
) -> None:
    for address in (
        Address(kubeconfig=tmp_path / "none"),
        Address(kubeconfig=server.kubeconfig, context="none"),
    ):
        with pytest.raises(SetupError, match="name a kubeconfig that kubectl can use"):
            async with connect(address):
                pass


async def test_a_pod_without_its_service_account_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))

    with pytest.raises(SetupError, match="the pod's service account"):
        async with connect():
            pass


async def test_the_token_of_a_pod_is_read_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", certifi.where())

    async with connect() as connection:
        login = connection._configuration.get_api_key_with_prefix
        assert await login("BearerToken") == "bearer first"
        token.write_text("second")
        await connection._log_in_again(0)
        assert await login("BearerToken") == "bearer second"
        token.write_text("third")
        await connection._log_in_again(0)
        assert await login("BearerToken") == "bearer second"

    assert connection._configuration.host == "https://10.0.0.1:443"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "86400"}, 60),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"Retry-After": "-1"}, None),
    ],
)
def test_the_wait_is_as_the_server_says_within_reason(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after_of(headers) == seconds


def test_a_refused_object_names_the_field() -> None:
    said = {
        "message": "spec.replicas: Invalid value",
        "reason": "Invalid",
        "details": {"causes": [{"message": "no field"}, {"field": "spec.replicas"}]},
    }

    error = refusal("patch stages a/b", 422, json.dumps(said).encode())

    assert isinstance(error, ObjectInvalid)
    assert error.field == "spec.replicas"
    assert error.message == "patch stages a/b: spec.replicas: Invalid value"


def test_a_taken_name_is_more_than_a_conflict() -> None:
    error = refusal("create x", 409, b'{"reason": "AlreadyExists", "message": "taken"}')

    assert isinstance(error, AlreadyExists)
    assert isinstance(error, WriteConflict)


@pytest.mark.parametrize("body", [b"", b"<html>bad gateway</html>", b"\xff\xfe", b"[1]", b"null"])
def test_whatever_a_proxy_says_is_told_and_cut(body: bytes) -> None:
    error = refusal("get x", 502, body * 1000)

    assert isinstance(error, ApiUnavailable)
    assert len(error.message) < 600


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    """An answer in these pieces."""
    for part in parts:
        yield part


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
async def test_lines_are_whole_however_they_arrive(size: int) -> None:
    text = b'{"a":1}\n\n  \n{"b":"\xc3\xbc"}\n{"unfinished'
    parts = [text[start : start + size] for start in range(0, len(text), size)]

    assert [line async for line in lines_of(chunks(*parts))] == [b'{"a":1}', b'{"b":"\xc3\xbc"}']


async def test_a_line_without_end_is_refused() -> None:
    piece = b"x" * (MAX_LINE_BYTES // 4 + 1)

    with pytest.raises(ApiUnavailable, match="a line of more than"):
        async for _ in lines_of(chunks(*[piece] * 5)):
            pass
