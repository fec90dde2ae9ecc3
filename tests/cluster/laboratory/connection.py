"""A plain HTTP connection to an API server, made from a kubeconfig file.

Simulated nodes speak it: thousands of small requests, for which a client that builds an object from
every answer would cost more than the server. Certificates and tokens are understood; logins by an
external program are not.
"""

import asyncio
import base64
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import yaml
from msgspec import Struct

from omnistage_common.errors import SetupError

__all__ = ["Answer", "Connection", "connected"]

_RETRIES: Final = 8
_FIRST_DELAY: Final = 0.25
"""Seconds; it doubles with every retry."""
_TRY_AGAIN: Final = frozenset({429, 500, 503, 504})
_LINE_BYTES: Final = 4 * 2**20
"""Longest event of a watch; etcd takes no object above 1.5 MiB."""


class Answer(Struct, frozen=True, kw_only=True):
    """What the API server said."""

    status: int
    body: dict[str, Any]

    @property
    def good(self) -> bool:
        """Whether it did what it was asked to."""
        return self.status < 300


class Connection:
    """Asks one API server; made by `connected`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        kind: str = "application/json",
    ) -> Answer:
        """Sends a request; tries again for a while when the server is busy."""
        encoded = None if body is None else msgspec.json.encode(body)
        delay = _FIRST_DELAY
        for attempt in range(_RETRIES):
            headers = {"Content-Type": kind}
            async with self._session.request(method, path, data=encoded, headers=headers) as heard:
                answer = Answer(status=heard.status, body=msgspec.json.decode(await heard.read()))
            if answer.status not in _TRY_AGAIN or attempt == _RETRIES - 1:
                break
            await asyncio.sleep(delay)
            delay *= 2
        return answer

    async def merge(self, path: str, body: dict[str, Any]) -> Answer:
        """Changes the named fields of an object; lists are merged by their keys."""
        kind = "application/strategic-merge-patch+json"
        return await self.ask("PATCH", path, body, kind=kind)

    async def watch(self, path: str) -> AsyncIterator[dict[str, Any]]:
        """The events of a watch, until the server ends it."""
        unlimited = aiohttp.ClientTimeout(total=None, sock_read=None)
        async with self._session.get(path, timeout=unlimited) as heard:
            if heard.status >= 300:
                yield {"type": "ERROR", "object": msgspec.json.decode(await heard.read())}
                return
            async for line in heard.content:
                yield msgspec.json.decode(line)


@asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[Connection]:
    """A connection to the server of a kubeconfig's current context, closed in the end.

    Raises:
        SetupError: The file names neither a client certificate nor a token.
    """
    cluster, user = _current(kubeconfig)
    trust = ssl.create_default_context(cadata=_text(cluster, "certificate-authority") or None)
    certificate, key = _text(user, "client-certificate"), _text(user, "client-key")
    headers: dict[str, str] = {}
    if certificate and key:
        with tempfile.NamedTemporaryFile("w") as pair:
            pair.write(certificate + "\n" + key)
            pair.flush()
            trust.load_cert_chain(pair.name)
    elif user.get("token"):
        headers["Authorization"] = f"Bearer {user['token']}"
    else:
        raise SetupError(
            f"{kubeconfig} has neither a client certificate nor a token for its current context; "
            "simulated nodes cannot log in by another program"
        )
    async with aiohttp.ClientSession(
        base_url=cluster["server"],
        headers=headers,
        connector=aiohttp.TCPConnector(ssl=trust, limit=0),
        timeout=aiohttp.ClientTimeout(total=60),
        read_bufsize=_LINE_BYTES,
    ) as session:
        yield Connection(session)


def _current(kubeconfig: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    document = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))

    def named(kind: str, name: str) -> dict[str, Any]:
        entry: dict[str, Any] = next(one for one in document[f"{kind}s"] if one["name"] == name)
        inner: dict[str, Any] = entry[kind]
        return inner

    context = named("context", document["current-context"])
    return named("cluster", context["cluster"]), named("user", context["user"])


def _text(entry: dict[str, Any], key: str) -> str:
    """A part of a kubeconfig that stands in the file or in a file of its own."""
    if data := entry.get(f"{key}-data"):
        return base64.b64decode(data).decode()
    if path := entry.get(key):
        return Path(path).read_text(encoding="utf-8")
    return ""
