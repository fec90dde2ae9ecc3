"""A fake Kubernetes API server: real HTTP on a loopback port, real watches, real server-side apply.

    async with FakeApiServer() as server:
        server.put({"apiVersion": "v1", "kind": "Pod", "metadata": {...}})
        async with connect(Address(kubeconfig=server.kubeconfig)) as connection:
            ...
        assert server.requests["patch", "stages/status"] == 1

Every kind of `omnistage_common.cluster.kinds` is installed; `server.faults` breaks things (see
`fakes.api_faults`), `cut_watches`, `expire_watches`, `compact` and `rotate_token` do what their names say.
Deleting an owner deletes its children at once, as the garbage collector does a little later.
"""

import asyncio
import contextlib
import json
import re
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from fakes.api_faults import Faults
from fakes.api_objects import Conflict, Objects, collect, merged, taken_over, without
from fakes.api_selecting import Selector
from omnistage_common.cluster.kinds import KINDS, ResourceKind, kind_of
from omnistage_common.cluster.manifests import (
    Manifest,
    ObjectKey,
    key_of,
    owner_uids,
    uid_of,
    version_of,
)

__all__ = ["FakeApiServer", "Seen"]

_READS = frozenset({"get", "list", "watch"})


class _Refused(Exception):
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One request, as it came in."""

    verb: str
    resource: str
    key: ObjectKey
    body: dict[str, Any] | None
    query: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class _Target:
    kind: ResourceKind
    key: ObjectKey
    subresource: str

    @property
    def resource(self) -> str:
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


@dataclass(frozen=True, kw_only=True)
class _Event:
    version: int
    before: Manifest | None
    after: Manifest | None


@dataclass(kw_only=True)
class _History:
    """What happened to a kind, for watches that begin in the past."""

    events: list[_Event] = field(default_factory=list)
    compacted: int = 0


class FakeApiServer:
    """See the module."""

    def __init__(self, *, bookmark_every_s: float | None = None) -> None:
        self.faults = Faults()
        self.requests: Counter[tuple[str, str]] = Counter()
        """(verb, plural or plural/subresource) -> how many, refused ones too."""
        self.seen: list[Seen] = []
        """Every request but lists and watches, in order."""
        self.url = ""
        self.token = "first-token"  # noqa: S105
        self._bookmark_every_s = bookmark_every_s
        self._version = 0
        self._kinds: dict[tuple[str, str, str], ResourceKind] = {}
        self._objects: dict[ResourceKind, Objects] = {}
        self._uids: set[str] = set()
        self._swallowed: dict[ResourceKind, tuple[str, ...]] = {}
        self._histories: dict[ResourceKind, _History] = {}
        self._watches: dict[asyncio.Task[Any], tuple[ResourceKind, web.Request]] = {}
        self._expiring: set[asyncio.Task[Any]] = set()
        self._signals: dict[asyncio.Task[Any], asyncio.Event] = {}
        self._stack = contextlib.AsyncExitStack()
        for kind in KINDS:
            self.install(kind)

    async def __aenter__(self) -> Self:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        application = web.Application(client_max_size=4 * 2**20)
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(
            application, shutdown_timeout=0.1, access_log=None, handler_cancellation=True
        )
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._token_file = folder / "token"
        self.kubeconfig = folder / "kubeconfig"
        """A file that leads to this server."""
        self._token_file.write_text(self.token)
        self.kubeconfig.write_text(json.dumps(self._kubeconfig()))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.faults.heal()
        self.cut_watches()
        await self._stack.aclose()

    # What tests do to the state.

    def install(self, kind: ResourceKind) -> None:
        """The server knows this kind from now on."""
        history = _History()
        self._kinds[kind.group, kind.version, kind.plural] = kind
        self._histories[kind] = history
        self._objects[kind] = Objects(
            self._next_version, lambda before, after: self._changed(kind, before, after)
        )

    def uninstall(self, kind: ResourceKind) -> None:
        """The server no longer knows this kind."""
        del self._kinds[kind.group, kind.version, kind.plural]

    def put(self, manifest: Manifest) -> Manifest:
        """Stores the object as it is, whatever was there."""
        kind = kind_of(manifest)
        if kind in self._swallowed:
            manifest = without(manifest, self._swallowed[kind])
        return self._objects[kind].write(manifest)

    def patch(self, kind: ResourceKind, key: ObjectKey, **fields: Any) -> Manifest:
        """Replaces top-level fields of an object, e.g. `status={...}`."""
        return self._objects[kind].write({**self.need(kind, key), **fields})

    def set_field(
        self,
        kind: ResourceKind,
        key: ObjectKey,
        path: tuple[str, ...],
        value: Any,
        *,
        manager: str,
        subresource: str = "",
    ) -> Manifest:
        """Another manager sets one field and owns it, as `kubectl scale` owns `spec.replicas`."""
        steps = tuple(f"f:{name}" for name in path)
        changed = taken_over(
            self.need(kind, key), steps, value, manager=manager, subresource=subresource
        )
        return self._objects[kind].write(changed)

    def swallow(self, kind: ResourceKind, path: tuple[str, ...]) -> None:
        """Objects of this kind never keep this field, as when a default is left out."""
        self._swallowed[kind] = path

    def get(self, kind: ResourceKind, key: ObjectKey) -> Manifest | None:
        """The object, None when there is none."""
        return self._objects[kind].get(key)

    def need(self, kind: ResourceKind, key: ObjectKey) -> Manifest:
        """The object; KeyError when there is none."""
        found = self.get(kind, key)
        if found is None:
            raise KeyError(f"{kind} {key}")
        return found

    def all(self, kind: ResourceKind) -> list[Manifest]:
        """Every object of a kind, by namespace and name."""
        return self._objects[kind].sorted()

    def remove(self, kind: ResourceKind, key: ObjectKey) -> None:
        """Deletes an object and what it owned."""
        collect(list(self._objects.values()), self._objects[kind].remove(key))

    # What tests do to the connection.

    def writes(self) -> int:
        """Writes that came in, leases and events not counted."""
        return sum(
            count
            for (verb, resource), count in self.requests.items()
            if verb not in _READS and resource not in {"leases", "events", "version"}
        )

    def cut_watches(self) -> int:
        """Breaks the connection of every watch; how many there were."""
        for _, request in self._watches.values():
            if request.transport is not None:
                request.transport.abort()
        return len(self._watches)

    def expire_watches(self) -> None:
        """Every open watch is told that its history is gone."""
        self._expiring |= set(self._watches)
        self._rouse()

    def compact(self) -> None:
        """Watches can no longer begin in the past."""
        for history in self._histories.values():
            history.compacted = self._version
            history.events.clear()

    def restore(self, manifests: list[Manifest]) -> None:
        """Everything is as in an old backup: few objects, low versions, watches gone."""
        self._version = 0
        for kind in list(self._objects):
            self.install(kind)
        for manifest in manifests:
            self.put(manifest)
        self.cut_watches()

    def bookmark(self) -> None:
        """Every open watch gets a bookmark."""
        for kind in self._histories:
            self._changed(kind, None, None)

    def rotate_token(self, token: str, *, publish: bool = True) -> None:
        """The old token is void; the new one is in the token file unless it is not published."""
        self.token = token
        if publish:
            self._token_file.write_text(token)

    @property
    def open_watches(self) -> int:
        """Watches that are open now."""
        return len(self._watches)

    # How requests are answered.

    def _kubeconfig(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "operator", "user": {"tokenFile": str(self._token_file)}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "operator"}}],
            "current-context": "fake",
        }

    def _next_version(self) -> int:
        self._version += 1
        return self._version

    def _changed(self, kind: ResourceKind, before: Manifest | None, after: Manifest | None) -> None:
        if after is not None:
            self._uids.add(uid_of(after))
        elif before is not None:
            self._uids.discard(uid_of(before))
        history = self._histories[kind]
        history.events.append(_Event(version=self._version, before=before, after=after))
        self._rouse(kind)

    def _rouse(self, kind: ResourceKind | None = None) -> None:
        for task, (watched, _) in self._watches.items():
            if kind in {None, watched}:
                self._signals[task].set()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except _Refused as refused:
            return _status(refused.status, refused.reason, refused.message)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.faults.answer is not None:
            return web.Response(body=self.faults.answer + b"\n")
        if request.headers.get("Authorization", "").lower() != f"bearer {self.token}".lower():
            self.requests["unauthorized", ""] += 1
            raise _Refused(401, "Unauthorized", "Unauthorized")
        if request.path == "/version":
            self.requests["get", "version"] += 1
            return web.json_response({"gitVersion": "v1.34.0-fake"})
        if request.path.endswith("/selfsubjectreviews"):
            self.requests["create", "selfsubjectreviews"] += 1
            user = {"username": "system:serviceaccount:omnistage:operator"}
            return web.json_response({"status": {"userInfo": user}}, status=201)
        if re.fullmatch("/apis/[^/]+/[^/]+", request.path):
            return web.json_response(self._discovery(request.path))
        return await self._answer_about(request, self._target(request.path))

    def _discovery(self, path: str) -> dict[str, Any]:
        """The kinds of a group's version."""
        self.requests["get", "apis"] += 1
        group, version = path.split("/")[2:]
        names = [plural for found, at, plural in self._kinds if (found, at) == (group, version)]
        if not names:
            raise _Refused(404, "NotFound", "the server could not find the requested resource")
        return {"kind": "APIResourceList", "resources": [{"name": name} for name in names]}

    async def _answer_about(self, request: web.Request, target: _Target) -> web.StreamResponse:
        verb = _verb(request, target)
        self.requests[verb, target.resource] += 1
        refusal = self.faults.refusal_for(verb, target.resource)
        if verb != "watch":
            await self.faults.hold_up(verb, target.resource)
        if refusal is not None and not refusal.after_write:
            return _failure(refusal.status, refusal.message, refusal.retry_after)
        if verb == "watch":
            return await self._watch(request, target)
        if verb == "list":
            return web.json_response(self._list(target, request.query))
        body = await request.json() if request.can_read_body else None
        self.seen.append(
            Seen(
                verb=verb,
                resource=target.resource,
                key=target.key,
                body=body,
                query=dict(request.query),
            )
        )
        answer = self._do(verb, target, body, dict(request.query))
        if refusal is not None:
            return _failure(refusal.status, refusal.message, refusal.retry_after)
        return web.json_response(answer, status=201 if verb == "create" else 200)

    def _target(self, path: str) -> _Target:
        parts = path.strip("/").split("/")
        group, parts = ("", parts[1:]) if parts[0] == "api" else (parts[1], parts[2:])
        version, *rest = parts
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        plural, name, subresource = [*rest, "", ""][:3]
        kind = self._kinds.get((group, version, plural))
        if kind is None:
            raise _Refused(404, "NotFound", "the server could not find the requested resource")
        return _Target(kind=kind, key=ObjectKey(namespace, name), subresource=subresource)

    def _list(self, target: _Target, query: Any) -> dict[str, Any]:
        selector = Selector.of(target.key.namespace, query)
        items = [found for found in self.all(target.kind) if selector.takes(found)]
        after = json.loads(query.get("continue", '["", ""]'))
        items = [found for found in items if list(key_of(found)) > after]
        limit = int(query.get("limit", "0")) or len(items)
        metadata = {"resourceVersion": str(self._version)}
        if len(items) > limit:
            metadata["continue"] = json.dumps(key_of(items[limit - 1]))
        bare = [
            {name: value for name, value in found.items() if name not in {"apiVersion", "kind"}}
            for found in items[:limit]
        ]
        return {
            "apiVersion": target.kind.api_version,
            "kind": f"{target.kind.kind}List",
            "metadata": metadata,
            "items": bare,
        }

    def _do(
        self, verb: str, target: _Target, body: dict[str, Any] | None, query: dict[str, str]
    ) -> Manifest:
        objects = self._objects[target.kind]
        live = objects.get(target.key)
        if verb == "create":
            return self._create(target, body or {})
        if live is None and (verb != "patch" or target.subresource):
            raise _Refused(404, "NotFound", f'{target.kind} "{target.key.name}" not found')
        if verb == "get":
            return self.need(target.kind, target.key)
        if verb == "delete":
            return self._delete(target, body or {})
        if verb == "update":
            return self._update(target, body or {})
        return self._apply(target, live, body or {}, query)

    def _create(self, target: _Target, body: Manifest) -> Manifest:
        if self.get(target.kind, key_of(body)) is not None:
            raise _Refused(409, "AlreadyExists", f'"{key_of(body).name}" already exists')
        return self.put(body)

    def _update(self, target: _Target, body: Manifest) -> Manifest:
        live = self.need(target.kind, target.key)
        if version_of(body) != version_of(live):
            raise _Refused(409, "Conflict", "the object has been modified")
        return self.put(body)

    def _delete(self, target: _Target, options: dict[str, Any]) -> Manifest:
        live = self.need(target.kind, target.key)
        uid = (options.get("preconditions") or {}).get("uid")
        if uid not in {None, live["metadata"]["uid"]}:
            raise _Refused(409, "Conflict", "the UID in the precondition does not match")
        self.remove(target.kind, target.key)
        return live

    def _apply(
        self, target: _Target, live: Manifest | None, body: Manifest, query: dict[str, str]
    ) -> Manifest:
        uid = body["metadata"].get("uid")
        if uid and (live is None or uid != live["metadata"]["uid"]):
            raise _Refused(409, "Conflict", "uid mismatch")
        try:
            after = merged(
                live,
                body,
                manager=query["fieldManager"],
                force=query.get("force") == "true",
                status=target.subresource == "status",
            )
        except Conflict as conflict:
            raise _Refused(409, "Conflict", str(conflict)) from conflict
        written = self.put(after)
        owners = owner_uids(written)
        if owners and self._uids.isdisjoint(owners):
            # Its owners went while it came: the garbage collector finds it.
            self.remove(target.kind, target.key)
        return written

    async def _watch(self, request: web.Request, target: _Target) -> web.StreamResponse:
        history = self._histories[target.kind]
        since = int(request.query["resourceVersion"])
        if not history.compacted <= since <= self._version:
            raise _Refused(410, "Expired", "too old resource version")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._watches[task] = (target.kind, request)
        self._signals[task] = asyncio.Event()
        try:
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(float(request.query.get("timeoutSeconds", "300"))):
                    await self._stream(response, target, request, since)
        finally:
            del self._watches[task]
            del self._signals[task]
            self._expiring.discard(task)
        return response

    async def _stream(
        self, response: web.StreamResponse, target: _Target, request: web.Request, since: int
    ) -> None:
        """Writes events until the watch is over."""
        history = self._histories[target.kind]
        selector = Selector.of(target.key.namespace, request.query)
        task = asyncio.current_task()
        assert task is not None
        signal = self._signals[task]
        next_event = sum(event.version <= since for event in history.events)
        while True:
            if task in self._expiring:
                await response.write(_line("ERROR", _failure_body(410, "Expired")))
                return
            while next_event < len(history.events) and not self.faults.frozen:
                event = history.events[next_event]
                next_event += 1
                line = self._line_of(target.kind, event, selector)
                if line is not None:
                    await response.write(line)
            await self._next_signal(signal, response, target.kind)

    async def _next_signal(
        self, signal: asyncio.Event, response: web.StreamResponse, kind: ResourceKind
    ) -> None:
        """Waits until something happened; sends bookmarks meanwhile."""
        try:
            async with asyncio.timeout(self._bookmark_every_s):
                await signal.wait()
        except TimeoutError:
            if not (self.faults.frozen or self.faults.drop_bookmarks):
                await response.write(_bookmark(kind, self._version))
        signal.clear()

    def _line_of(self, kind: ResourceKind, event: _Event, selector: Selector) -> bytes | None:
        if event.before is None and event.after is None:
            return None if self.faults.drop_bookmarks else _bookmark(kind, event.version)
        was = event.before is not None and selector.takes(event.before)
        now = event.after is not None and selector.takes(event.after)
        if now:
            return _line("MODIFIED" if was else "ADDED", event.after)
        if was and event.before is not None:
            metadata = {**event.before["metadata"], "resourceVersion": str(event.version)}
            return _line("DELETED", {**event.before, "metadata": metadata})
        return None


def _verb(request: web.Request, target: _Target) -> str:
    if request.method == "GET":
        if target.key.name:
            return "get"
        return "watch" if request.query.get("watch") else "list"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[request.method]


def _line(kind: str, manifest: Any) -> bytes:
    return json.dumps({"type": kind, "object": manifest}).encode() + b"\n"


def _bookmark(kind: ResourceKind, version: int) -> bytes:
    metadata = {"resourceVersion": str(version)}
    return _line(
        "BOOKMARK",
        {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata},
    )


def _failure_body(status: int, reason: str, message: str = "made to fail") -> dict[str, Any]:
    return {"kind": "Status", "code": status, "reason": reason, "message": message}


def _failure(status: int, message: str, retry_after: str) -> web.Response:
    headers = {"Retry-After": retry_after} if retry_after else {}
    return web.json_response(
        _failure_body(status, "Failed", message), status=status, headers=headers
    )


def _status(status: int, reason: str, message: str) -> web.Response:
    return web.json_response(_failure_body(status, reason, message), status=status)
