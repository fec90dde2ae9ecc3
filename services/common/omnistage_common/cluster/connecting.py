"""The way to the API server: the official client carries address, trust and credentials, and no more.

What crosses this seam is bytes. The client's models, its discovery and its retries stay unused: they
cost memory and time per object, and its in-cluster login was once silently absent, so the caller
proves at the start who it is. Service account tokens are short-lived: the client reads the file anew
every minute, and an answer 401 makes us load the credentials once more and ask again, which covers
token files and login plug-ins of a kubeconfig too.

This is the only module that imports `kubernetes` and `aiohttp`; their exceptions end here.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec
import yaml
from aiohttp import ClientError, ClientResponse, ClientTimeout
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from omnistage_common.cluster.answers import refusal
from omnistage_common.cluster.errors import ApiUnavailable
from omnistage_common.errors import SetupError, truncated

__all__ = ["Address", "Connection", "Request", "Transport", "connect"]

_LIMITS: Final = ClientTimeout(total=None, sock_connect=10.0)
"""The client's own limits; how long an answer may take is each request's."""
_UNAUTHORIZED: Final = 401
_USER_AGENT: Final = "omnistage"
_IN_CLUSTER: Final = "KUBERNETES_SERVICE_HOST"
"""Set by the kubelet in every pod."""
_KUBECONFIG: Final = "KUBECONFIG"
"""Files that kubectl reads, where it is set."""

_Load = Callable[[Configuration], Awaitable[None]]


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where the API server is and who asks."""

    kubeconfig: Path | None = None
    """File to read; None: the pod's service account, or else what kubectl would use."""
    context: str | None = None
    """Context of the kubeconfig; None for its current one."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request, ready to be sent."""

    asked: str
    """What is asked, for messages."""
    method: str
    path: str
    query: Mapping[str, str] = {}
    body: Mapping[str, Any] | None = None
    content_type: str = "application/json"
    timeout_s: float = 15.0
    """From the first byte sent to the last received; for a stream until it stands."""


class Transport(Protocol):
    """What the verbs need of a connection."""

    async def send(self, request: Request) -> bytes:
        """Sends it and returns the body of the answer.

        Raises:
            ApiError: The server refused, failed or was not reached; the class says which.
        """

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Opens an answer without end; its chunks come as they arrive."""


class Connection:
    """A pool of connections to one API server; a `Transport`."""

    def __init__(self, configuration: Configuration, load: _Load) -> None:
        self._configuration = configuration
        self._load = load
        self._client = ApiClient(configuration)
        self._logins = 0
        self._login = asyncio.Lock()

    async def send(self, request: Request) -> bytes:
        """Sends it and returns the body of the answer.

        Raises:
            ApiError: The server refused, failed or was not reached; the class says which.
        """
        try:
            async with asyncio.timeout(request.timeout_s):
                response = await self._answered(request)
                try:
                    return await response.read()
                finally:
                    response.release()
        except (ClientError, OSError, TimeoutError) as error:
            raise _unreachable(request, error) from error

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        """Opens an answer without end; its chunks come as they arrive.

        Raises:
            ApiError: As `send`; while the chunks are read, `ApiUnavailable` when the server is lost.
        """
        try:
            async with asyncio.timeout(request.timeout_s):
                response = await self._answered(request)
        except (ClientError, OSError, TimeoutError) as error:
            raise _unreachable(request, error) from error
        chunks = _chunks(request, response)
        try:
            yield chunks
        finally:
            await chunks.aclose()
            response.close()

    async def close(self) -> None:
        """Closes every connection."""
        await self._client.close()

    async def _answered(self, request: Request) -> ClientResponse:
        """A response with a good status; logs in anew, once, when the credentials have aged."""
        logins = self._logins
        response = await self._sent(request)
        if response.status == _UNAUTHORIZED:
            response.release()
            await self._log_in_again(logins)
            response = await self._sent(request)
        if response.status >= 400:  # noqa: PLR2004
            body = await response.read()
            response.release()
            raise refusal(request.asked, response.status, body, response.headers)
        return response

    async def _sent(self, request: Request) -> ClientResponse:
        headers = {
            "Accept": "application/json",
            "Content-Type": request.content_type,
            "User-Agent": _USER_AGENT,
        }
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        if token:
            headers["Authorization"] = token
        url = self._configuration.host + request.path
        if request.query:
            url += "?" + urlencode(request.query)
        answer = await self._client.call_api(
            request.method, url, header_params=headers, body=request.body, _request_timeout=_LIMITS
        )
        response: ClientResponse = answer.response
        return response

    async def _log_in_again(self, logins: int) -> None:
        """Loads the credentials, unless another request did so since this one was sent."""
        async with self._login:
            if self._logins == logins:
                await self._load(self._configuration)
                self._logins += 1


async def _chunks(request: Request, response: ClientResponse) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except (ClientError, OSError, TimeoutError) as error:
        raise _unreachable(request, error) from error


def _unreachable(request: Request, error: Exception) -> ApiUnavailable:
    why = (
        f"no answer within {request.timeout_s:g} s"
        if isinstance(error, TimeoutError)
        else str(error)
    )
    return ApiUnavailable(f"{request.asked}: {truncated(why) or type(error).__name__}")


@asynccontextmanager
async def connect(address: Address | None = None) -> AsyncIterator[Connection]:
    """Connections to the API server, closed at the end of the context.

    Raises:
        SetupError: No way to an API server is configured.
    """
    load = _loader(address or Address())
    configuration = Configuration()
    # Watches hold a connection each; how many requests run is bounded by the verbs.
    configuration.connection_pool_maxsize = 0
    # Proxies and netrc would be looked for in the environment and in files at every request, which
    # costs more than the request itself.
    configuration.client_session_kwargs = {"trust_env": False}
    await load(configuration)
    configuration.proxy = configuration.proxy or _proxy_to(configuration.host)
    connection = Connection(configuration, load)
    try:
        yield connection
    finally:
        await connection.close()


def _proxy_to(host: str) -> str | None:
    """The proxy that the environment names for an API server (HTTPS_PROXY, NO_PROXY), as for kubectl."""
    parts = urlsplit(host)
    if parts.hostname is None or proxy_bypass(parts.netloc):
        return None
    return getproxies().get(parts.scheme)


def _loader(address: Address) -> _Load:
    async def from_pod(configuration: Configuration) -> None:
        with _named("the pod's service account"):
            load_incluster_config(client_configuration=configuration)

    async def from_file(configuration: Configuration) -> None:
        # The client has read the variable when it was imported; it counts when it is needed.
        named = address.kubeconfig or os.environ.get(_KUBECONFIG)
        file = str(named) if named else None
        with _named(file or "kubeconfig"):
            await load_kube_config(
                config_file=file,
                context=address.context,
                client_configuration=configuration,
                persist_config=False,
            )

    in_pod = address.kubeconfig is None and bool(os.environ.get(_IN_CLUSTER))
    return from_pod if in_pod else from_file


@contextmanager
def _named(source: str) -> Iterator[None]:
    """Says which source of the configuration is at fault."""
    try:
        yield
    except (ConfigException, yaml.YAMLError, OSError, ValueError, KeyError, TypeError) as error:
        raise SetupError(
            f"{source} does not say how to reach an API server: {truncated(str(error))}; "
            "name a kubeconfig that kubectl can use"
        ) from error
