"""What goes to the API server and what comes back, as values: paths, selections, pages, events.

Decoding is checked as far as the machinery reads: the frame around the objects. The objects themselves
stay plain JSON.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from enum import Enum
from typing import Any, Final, Literal, TypeVar

import msgspec

from omnistage_common.cluster.answers import refusal
from omnistage_common.cluster.connecting import Request
from omnistage_common.cluster.errors import ApiUnavailable
from omnistage_common.cluster.kinds import ResourceKind
from omnistage_common.cluster.lines import lines_of
from omnistage_common.cluster.manifests import Manifest

__all__ = [
    "EventKind",
    "Identity",
    "ObjectList",
    "Page",
    "Selection",
    "WatchEvent",
    "decoded_list",
    "decoded_object",
    "events_of",
    "path_of",
]

_T = TypeVar("_T")


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who we are to the API server, and what it is."""

    version: str
    """Version of the server, e.g. `v1.34.2`."""
    user: str
    """As whom it knows us."""
    uid: str = ""
    """Of that account, where it has one; a pod's is its ServiceAccount."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which objects of a kind a list or a watch is about."""

    namespace: str = ""
    """Empty for all."""
    labels: str = ""
    """Label selector as kubectl writes it."""
    fields: str = ""
    """Field selector as kubectl writes it."""

    def query(self) -> dict[str, str]:
        """As parameters of a request."""
        named = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in named.items() if value}


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a list."""

    items: list[Manifest]
    version: str
    """Version of the whole list, the same on each page."""


class EventKind(Enum):
    """What a watch says about an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    """Nothing happened up to this version."""


class WatchEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a watch."""

    kind: EventKind
    manifest: Manifest


class _ListMeta(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ObjectList(msgspec.Struct, frozen=True, kw_only=True):
    """A page as it comes."""

    metadata: _ListMeta
    items: list[Manifest] | None = None


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: Manifest


_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])
_LIST: Final = msgspec.json.Decoder(ObjectList)
_LINE: Final = msgspec.json.Decoder(_Line)


def path_of(kind: ResourceKind, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """Path of a kind, or of one object of it; without namespace it is the path over all of them."""
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    within = f"/namespaces/{namespace}" if namespace and kind.namespaced else ""
    parts = [root + within, kind.plural, name, subresource]
    return "/".join(part for part in parts if part)


def decoded_object(request: Request, body: bytes) -> Manifest:
    """The object that an answer holds.

    Raises:
        ApiUnavailable: It holds none; something else than the API server has answered.
    """
    return _decoded(_OBJECT, request, body)


def decoded_list(request: Request, body: bytes) -> ObjectList:
    """The page that an answer holds.

    Raises:
        ApiUnavailable: It holds none; something else than the API server has answered.
    """
    return _decoded(_LIST, request, body)


async def events_of(
    request: Request, chunks: AsyncIterator[bytes]
) -> AsyncGenerator[WatchEvent, None]:
    """The events of an open watch.

    Raises:
        ApiError: What the server says within the watch, most often that the history is gone.
    """
    async with aclosing(lines_of(chunks)) as lines:
        async for line in lines:
            event = _decoded(_LINE, request, line)
            if event.type == "ERROR":
                status = int(event.object.get("code", 500))
                raise refusal(request.asked, status, msgspec.json.encode(event.object))
            yield WatchEvent(kind=EventKind(event.type), manifest=event.object)


def _decoded(decoder: "msgspec.json.Decoder[_T]", request: Request, body: bytes) -> _T:
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ApiUnavailable(f"{request.asked}: the answer is not what the API promises") from error
