"""The verbs of the Kubernetes API over raw JSON: paced, retried where that is safe, fenced.

Every request waits for its turn under one limit, so that a thousand keys do not fall on the API server
at once. What can be repeated without harm is repeated: reads, server-side apply and deletes by uid.
A write asks the fence right before each time it is sent and may not outlast it. Nothing here knows
what an object means.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from typing import Any, Final

import msgspec

from omnistage_common.cluster.connecting import Request, Transport
from omnistage_common.cluster.errors import ApiBusy, ApiError, ApiUnavailable, ObjectNotFound
from omnistage_common.cluster.fencing import Fence
from omnistage_common.cluster.kinds import PODS, ResourceKind
from omnistage_common.cluster.manifests import Manifest, ObjectKey, Uid, key_of
from omnistage_common.cluster.messages import (
    Identity,
    Page,
    Selection,
    WatchEvent,
    decoded_list,
    decoded_object,
    events_of,
    path_of,
)
from omnistage_common.cluster.metrics import ApiMetrics
from omnistage_common.cluster.rates import BackoffRule, TokenBucket

__all__ = ["Api", "Limits"]

_APPLY: Final = "application/apply-patch+yaml"
_UNTIL_OPEN_S: Final = 30.0
"""Until a watch stands."""
_PASSING: Final = (ApiBusy, ApiUnavailable)
"""What may be over when the same is asked again."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much is asked of the API server, and for how long."""

    per_second: float = 500.0
    """Requests a second in the long run; the server's own fairness comes on top."""
    burst: int = 1000
    in_flight: int = 32
    """Requests at the same time, watches not counted."""
    tries: int = 5
    """How often one request is sent, at most."""
    request_s: float = 15.0
    """Seconds for one request."""
    page: int = 500
    """Objects in one page of a list."""
    backoff: BackoffRule = BackoffRule(first_s=0.1, most_s=10.0)
    """Pause before a request is repeated, unless the server names one."""
    longest_pause_s: float = 5.0
    """When the server names a longer pause, the request fails and its caller waits instead."""

    @classmethod
    def once(cls, request_s: float) -> "Limits":
        """For a caller who decides about every failure by itself, as the election does."""
        return cls(tries=1, request_s=request_s)


class Api:
    """The verbs, for one field manager."""

    def __init__(
        self,
        transport: Transport,
        *,
        field_manager: str,
        fence: Fence,
        metrics: ApiMetrics,
        limits: Limits | None = None,
    ) -> None:
        self.field_manager = field_manager
        self._transport = transport
        self._fence = fence
        self._metrics = metrics
        self._limits = limits or Limits()
        self._bucket = TokenBucket(rate=self._limits.per_second, burst=self._limits.burst)
        self._slots = asyncio.Semaphore(self._limits.in_flight)

    def unfenced(self, limits: Limits) -> "Api":
        """The same server with other limits and no fence: for the lease, which moves the fence."""
        return Api(
            self._transport,
            field_manager=self.field_manager,
            fence=Fence.always_open(),
            metrics=self._metrics,
            limits=limits,
        )

    def speaking_as(self, field_manager: str) -> "Api":
        """The same server and fence, for the fields of another manager."""
        return Api(
            self._transport,
            field_manager=field_manager,
            fence=self._fence,
            metrics=self._metrics,
            limits=self._limits,
        )

    async def check(self) -> Identity:
        """Proves that the server is reached and knows us.

        Raises:
            AccessDenied: It does not; the message says what to check.
            ApiUnavailable: It is not reached.
        """
        about = self._request("get version", "GET", "/version")
        version = await self._send(about, "version")
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        request = self._request("create selfsubjectreviews", "POST", path, body=review)
        answer = decoded_object(request, await self._send(request, "selfsubjectreviews"))
        about_us = answer.get("status", {}).get("userInfo", {})
        return Identity(
            version=decoded_object(about, version).get("gitVersion", ""),
            user=about_us.get("username", ""),
            uid=about_us.get("uid", ""),
        )

    async def serves(self, kind: ResourceKind) -> bool:
        """Whether the server knows a kind, at this version."""
        request = self._request(f"get {kind.group}", "GET", f"/apis/{kind.api_version}")
        try:
            answer = decoded_object(request, await self._send(request, "apis"))
        except ObjectNotFound:
            return False
        return any(each.get("name") == kind.plural for each in answer.get("resources", ()))

    async def get(self, kind: ResourceKind, key: ObjectKey) -> Manifest:
        """Reads one object.

        Raises:
            ObjectNotFound: There is none.
        """
        request = self._about("get", "GET", kind, key)
        return decoded_object(request, await self._send(request, str(kind)))

    async def log_tail(self, pod: ObjectKey, container: str, *, lines: int) -> str:
        """Reads the last lines of the log of a container.

        Raises:
            ObjectNotFound: There is no such pod.
            ObjectInvalid: The container has not been started.
        """
        query = {"container": container, "tailLines": str(lines)}
        request = self._about("get", "GET", PODS, pod, subresource="log", query=query)
        return (await self._send(request, "pods/log")).decode(errors="replace")

    async def pages(
        self, kind: ResourceKind, selection: Selection | None = None
    ) -> AsyncIterator[Page]:
        """Reads all objects of a selection, page by page.

        Raises:
            HistoryGone: It took too long; begin anew.
        """
        selection = selection or Selection()
        query = {**selection.query(), "limit": str(self._limits.page)}
        while True:
            path = path_of(kind, selection.namespace)
            request = self._request(f"list {kind}", "GET", path, query=query)
            listed = decoded_list(request, await self._send(request, str(kind)))
            items = listed.items or []
            for item in items:
                item.setdefault("apiVersion", kind.api_version)
                item.setdefault("kind", kind.kind)
            yield Page(items=items, version=listed.metadata.resource_version)
            if not listed.metadata.continue_:
                return
            query["continue"] = listed.metadata.continue_

    async def list_all(
        self, kind: ResourceKind, selection: Selection | None = None
    ) -> list[Manifest]:
        """Reads all objects of a selection."""
        return [item async for page in self.pages(kind, selection) for item in page.items]

    @asynccontextmanager
    async def watch(
        self, kind: ResourceKind, version: str, selection: Selection | None = None, *, for_s: float
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Opens a watch from a version on, bookmarks included; it ends by itself after `for_s`.

        Raises:
            HistoryGone: The version is too old; at the start or within the watch.
            ApiUnavailable: The connection broke; go on from the last version seen.
        """
        selection = selection or Selection()
        query = {
            **selection.query(),
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, round(for_s))),
        }
        request = self._request(
            f"watch {kind}",
            "GET",
            path_of(kind, selection.namespace),
            query=query,
            timeout_s=_UNTIL_OPEN_S,
        )
        await self._turn()
        async with AsyncExitStack() as stack:
            with self._counted("watch", str(kind)):
                chunks = await stack.enter_async_context(self._transport.stream(request))
            yield await stack.enter_async_context(aclosing(events_of(request, chunks)))

    async def apply(self, intent: Manifest, kind: ResourceKind, *, force: bool = True) -> Manifest:
        """Server-side apply: the object then has what the intent says, and our manager owns that.

        Raises:
            WriteConflict: Without force, when another manager owns a field.
            ObjectInvalid: The server refuses the intent.
            WriteFenced: This process may not write.
        """
        return await self._apply(intent, kind, subresource="", force=force)

    async def apply_status(self, intent: Manifest, kind: ResourceKind) -> Manifest:
        """Server-side apply on the status.

        A custom resource's status is taken whatever uid the intent names: one that replaced the object
        under its name may get a status that was meant for it, until somebody looks again.

        Raises:
            ObjectNotFound: The object is gone.
            WriteConflict: It is another object of the same name, of a kind where that is checked.
            WriteFenced: This process may not write.
        """
        return await self._apply(intent, kind, subresource="status", force=True)

    async def create(self, manifest: Manifest, kind: ResourceKind) -> Manifest:
        """Creates an object; repeated only when the server surely did not see it.

        Raises:
            AlreadyExists: The name is taken.
            WriteFenced: This process may not write.
        """
        key = key_of(manifest)
        path = path_of(kind, key.namespace)
        request = self._request(f"create {kind} {key}", "POST", path, body=manifest)
        return await self._written(request, str(kind), repeats=(ApiBusy,))

    async def replace(self, manifest: Manifest, kind: ResourceKind) -> Manifest:
        """Writes a whole object over the version that it carries.

        Raises:
            WriteConflict: The object has moved on.
            WriteFenced: This process may not write.
        """
        request = self._about("update", "PUT", kind, key_of(manifest), body=manifest)
        return await self._written(request, str(kind), repeats=(ApiBusy,))

    async def delete(
        self, kind: ResourceKind, key: ObjectKey, *, uid: Uid, grace_s: int | None = None
    ) -> None:
        """Deletes this very object, children in the background; one that is gone is fine.

        Args:
            kind: Of the object.
            key: Where it is.
            uid: Which one of that name.
            grace_s: Seconds that its containers may take to end; None for as long as it says itself.

        Raises:
            WriteConflict: Another object has the name by now.
            WriteFenced: This process may not write.
        """
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
            **({} if grace_s is None else {"gracePeriodSeconds": grace_s}),
        }
        try:
            await self._send(
                self._about("delete", "DELETE", kind, key, body=options), str(kind), writes=True
            )
        except ObjectNotFound:
            return

    async def _apply(
        self, intent: Manifest, kind: ResourceKind, *, subresource: str, force: bool
    ) -> Manifest:
        query = {"fieldManager": self.field_manager, "force": "true" if force else "false"}
        request = self._about(
            "patch",
            "PATCH",
            kind,
            key_of(intent),
            subresource=subresource,
            query=query,
            body=intent,
            content_type=_APPLY,
        )
        resource = f"{kind}/{subresource}" if subresource else str(kind)
        return await self._written(request, resource)

    def _about(
        self,
        verb: str,
        method: str,
        kind: ResourceKind,
        key: ObjectKey,
        *,
        subresource: str = "",
        **more: Any,
    ) -> Request:
        path = path_of(kind, key.namespace, key.name, subresource)
        shown = f"{kind}/{subresource}" if subresource else str(kind)
        return self._request(f"{verb} {shown} {key}", method, path, **more)

    def _request(self, asked: str, method: str, path: str, **more: Any) -> Request:
        more.setdefault("timeout_s", self._limits.request_s)
        return Request(asked=asked, method=method, path=path, **more)

    async def _written(
        self, request: Request, resource: str, repeats: tuple[type[ApiError], ...] = _PASSING
    ) -> Manifest:
        body = await self._send(request, resource, writes=True, repeats=repeats)
        return decoded_object(request, body)

    async def _send(
        self,
        request: Request,
        resource: str,
        *,
        writes: bool = False,
        repeats: tuple[type[ApiError], ...] = _PASSING,
    ) -> bytes:
        """Sends it, and again after a pause while that is safe and promises something."""
        verb = request.asked.partition(" ")[0]
        tries = 0
        while True:
            await self._turn()
            tries += 1
            try:
                async with self._slots:
                    with self._counted(verb, resource):
                        return await self._transport.send(
                            self._fenced(request) if writes else request
                        )
            except repeats as error:
                pause = self._pause_after(error, tries)
            await asyncio.sleep(pause)

    def _pause_after(self, error: ApiError, tries: int) -> float:
        """Seconds before the request is sent again; raises the error where it is not."""
        asked = error.retry_after
        if tries >= self._limits.tries or (asked or 0.0) > self._limits.longest_pause_s:
            raise error
        return self._limits.backoff.after(tries) if asked is None else asked

    def _fenced(self, request: Request) -> Request:
        """The request with a time limit that the right to write outlasts."""
        return msgspec.structs.replace(
            request, timeout_s=min(request.timeout_s, self._fence.check())
        )

    async def _turn(self) -> None:
        wait = self._bucket.book(asyncio.get_running_loop().time())
        if wait > 0:
            self._metrics.held_back(wait)
            await asyncio.sleep(wait)

    @contextmanager
    def _counted(self, verb: str, resource: str) -> Iterator[None]:
        clock = asyncio.get_running_loop().time
        started = clock()
        outcome = "cancelled"
        try:
            yield
        except ApiError as error:
            outcome = error.code
            raise
        else:
            outcome = "ok"
        finally:
            self._metrics.answered(verb, resource, outcome, clock() - started)
