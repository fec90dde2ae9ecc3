"""One kind, kept at hand: list, then watch, for ever, whatever happens to the connection.

    list ──ok──▶ watch ──ended, cut, silent──▶ watch again from the last version seen
      ▲            │
      └──410───────┘        the history is gone: list again, always

Every list and every watch can fail; the pause between tries grows until one brings something. A watch
that says nothing, not even a bookmark, for too long is taken for dead: half-open connections look
exactly so, and a process whose health check still answers while its watches are dead was somebody's
outage. The seconds since the last sign are there for liveness.

The store is the one truth for everybody else; listeners are told after it has changed.
"""

import asyncio
import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import structlog

from omnistage_common.cluster.api import Api
from omnistage_common.cluster.errors import ApiError, HistoryGone, ObjectNotFound
from omnistage_common.cluster.kinds import ResourceKind
from omnistage_common.cluster.manifests import (
    UNKNOWN_VERSION,
    Manifest,
    ObjectKey,
    key_of,
    version_number,
)
from omnistage_common.cluster.messages import EventKind, Selection, WatchEvent
from omnistage_common.cluster.metrics import CacheMetrics
from omnistage_common.cluster.rates import BackoffRule
from omnistage_common.cluster.store import Change, IndexRule, Store
from omnistage_common.cluster.watched import Listener
from omnistage_common.errors import truncated

__all__ = ["Informer", "WatchOptions", "WatchTimings"]

log = structlog.get_logger(__name__)

_JITTER: Final = random.SystemRandom()
_SURELY_GONE: Final = 3
"""A kind that was there is believed to be uninstalled when this many tries in a row say so: a server
that starts does not know every kind at once."""
_ENDED: Final = "ended"
"""A watch that ended as it should."""


class WatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What of a kind is kept."""

    labels: str = ""
    """Label selector as kubectl writes it."""
    fields: str = ""
    """Field selector as kubectl writes it."""
    keep_managed_fields: bool = False
    """They are as long as the rest of the object; only who asks for owners needs them."""
    shrink: Callable[[Manifest], Manifest] | None = None
    """Leaves out what nobody reads, before the object is kept."""
    indexes: Mapping[str, IndexRule] = {}
    """Further ways to find objects; by owner they are found anyway."""
    also_in: tuple[str, ...] = ()
    """Further namespaces, where only some are kept."""
    optional: bool = False
    """The kind may not be installed: then it has no objects, until it is."""


class WatchTimings(msgspec.Struct, frozen=True, kw_only=True):
    """How patient a watch is."""

    silence_s: float = 150.0
    """Without event and bookmark for so long it is dead; the server sends bookmarks each minute."""
    shortest_s: float = 240.0
    """A watch ends by itself after a random time from here ..."""
    longest_s: float = 480.0
    """... to here, so that many watchers do not come back together."""
    backoff: BackoffRule = BackoffRule(first_s=0.2, most_s=30.0)
    """Pause between tries; a random part of it is left out."""

    def duration(self) -> float:
        """Seconds for the next watch."""
        return _JITTER.uniform(self.shortest_s, self.longest_s)

    def pause(self, failures: int) -> float:
        """Seconds before the next try."""
        return self.backoff.after(failures) * _JITTER.uniform(0.5, 1.0)


class Informer:
    """One kind in a store, over all namespaces or over some."""

    def __init__(
        self,
        *,
        api: Api,
        kind: ResourceKind,
        namespaces: tuple[str, ...] = (),
        options: WatchOptions | None = None,
        timings: WatchTimings | None = None,
        metrics: CacheMetrics,
    ) -> None:
        """Does nothing before `run`.

        Args:
            api: The way to the API server.
            kind: What to keep.
            namespaces: Of which namespaces; none for all. A kind without namespaces ignores it.
            options: What of it.
            timings: How patiently.
            metrics: Where to count.
        """
        options = options or WatchOptions()
        scopes: tuple[str, ...] = ("",)
        if namespaces and kind.namespaced:
            scopes = tuple(dict.fromkeys((*namespaces, *options.also_in)))
        self._kind = kind
        self._options = options
        self._store = Store(options.indexes)
        self._listeners: list[Listener] = []
        self._metrics = metrics
        self._reflectors = {
            scope: _Reflector(self, api, scope, timings or WatchTimings()) for scope in scopes
        }
        self.synced = asyncio.Event()
        """Set once everything was listed for the first time."""
        metrics.observe(objects=self._store.__len__, age=self.seconds_since_sign)

    @property
    def kind(self) -> ResourceKind:
        """What is kept."""
        return self._kind

    @property
    def store(self) -> Store:
        """What is there, as far as is known."""
        return self._store

    @property
    def options(self) -> WatchOptions:
        """What of the kind is kept."""
        return self._options

    @property
    def is_installed(self) -> bool:
        """False when the API server does not know the kind."""
        return all(reflector.is_installed for reflector in self._reflectors.values())

    def on_change(self, listener: Listener) -> None:
        """Tells this listener of every change from now on."""
        self._listeners.append(listener)

    def observe(self, manifest: Manifest) -> None:
        """Takes in the answer to a write of our own, unless the watch has seen later than it."""
        reflector = self._reflectors.get(key_of(manifest).namespace) or self._reflectors.get("")
        if reflector is not None and reflector.is_behind(manifest):
            self.take(manifest)

    def seconds_since_sign(self) -> float:
        """How long the quietest watch has given no sign; liveness looks at this."""
        return max(reflector.silence() for reflector in self._reflectors.values())

    async def run(self) -> None:
        """Lists and watches until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for scope, reflector in self._reflectors.items():
                tasks.create_task(reflector.run(), name=f"watch {self._kind} {scope}")

    def take(self, manifest: Manifest) -> None:
        """An object is in this state."""
        metadata = manifest["metadata"]
        if not self._options.keep_managed_fields:
            metadata.pop("managedFields", None)
        kept = self._options.shrink(manifest) if self._options.shrink else manifest
        self._tell(self._store.put(kept))

    def drop(self, manifest: Manifest) -> None:
        """An object was deleted in this state."""
        self._tell(self._store.remove(manifest))

    def sweep(self, scope: str, listed: set[ObjectKey], version: int) -> None:
        """A full list of a scope is in: what it lacks is gone."""

        def within(key: ObjectKey) -> bool:
            return not scope or key.namespace == scope

        for change in self._store.replace(within, listed, version):
            self._tell(change)
        if all(reflector.has_listed for reflector in self._reflectors.values()):
            self.synced.set()

    def restarted(self, reason: str) -> None:
        """A list or a watch is begun anew."""
        self._metrics.restarted(reason)

    def received(self) -> None:
        """An event arrived."""
        self._metrics.event()

    def _tell(self, change: Change | None) -> None:
        if change is not None:
            for listener in self._listeners:
                listener(*change)


class _Reflector:
    """List and watch of one scope of an informer."""

    def __init__(self, informer: Informer, api: Api, namespace: str, timings: WatchTimings) -> None:
        options = informer.options
        self._informer = informer
        self._api = api
        self._namespace = namespace
        self._selection = Selection(
            namespace=namespace, labels=options.labels, fields=options.fields
        )
        self._timings = timings
        self._clock = time.monotonic
        self._sign_at = self._clock()
        self._version = ""
        """Last version seen; empty when a list is due."""
        self._highest = UNKNOWN_VERSION
        self._failures = 0
        self._asked_to_wait = 0.0
        """Seconds that the server named."""
        self.has_listed = False
        self.is_installed = True

    def silence(self) -> float:
        """Seconds since the API server gave a sign."""
        return self._clock() - self._sign_at

    def is_behind(self, manifest: Manifest) -> bool:
        """Whether the watch has yet to come to this state."""
        state = version_number(manifest["metadata"].get("resourceVersion", ""))
        return self.has_listed and state > self._highest

    async def run(self) -> None:
        while True:
            reason = await self._attempt()
            self._informer.restarted(reason)
            if reason != _ENDED:
                self._failures = max(1, self._failures)
            if self._failures:
                pause = self._timings.pause(self._failures)
                await asyncio.sleep(max(pause, self._asked_to_wait))

    async def _attempt(self) -> str:
        """Lists if need be, and watches until that ends; why it did."""
        self._failures += 1
        self._asked_to_wait = 0.0
        try:
            if not self._version:
                await self._list()
            await self._watch()
        except HistoryGone:
            self._version = ""
            return "history_gone"
        except ObjectNotFound as error:
            self._missing(error)
            return error.code
        except ApiError as error:
            self._asked_to_wait = error.retry_after or 0.0
            self._complain(error)
            return error.code
        except TimeoutError:
            log.warning("watch is silent", kind=str(self._informer.kind), scope=self._namespace)
            return "silent"
        return _ENDED

    async def _list(self) -> None:
        listed: set[ObjectKey] = set()
        version = ""
        async for page in self._api.pages(self._informer.kind, self._selection):
            self._sign()
            version = page.version
            if version_number(version) < self._highest:
                # The server's history began anew (a restored backup): what was seen is void.
                self._highest = version_number(version)
                self._informer.sweep(self._namespace, set(), sys.maxsize)
            for manifest in page.items:
                listed.add(key_of(manifest))
                self._informer.take(manifest)
        self._reached(version)
        self.has_listed = self.is_installed = True
        self._informer.sweep(self._namespace, listed, version_number(version))

    async def _watch(self) -> None:
        duration = self._timings.duration()
        async with self._api.watch(
            self._informer.kind, self._version, self._selection, for_s=duration
        ) as events:
            self._sign()
            while True:
                async with asyncio.timeout(self._timings.silence_s):
                    event = await anext(events, None)
                if event is None:
                    return
                self._take(event)

    def _take(self, event: WatchEvent) -> None:
        self._sign()
        self._failures = 0
        manifest = event.manifest
        if event.kind is EventKind.DELETED:
            self._informer.drop(manifest)
        elif event.kind is not EventKind.BOOKMARK:
            self._informer.take(manifest)
        self._informer.received()
        self._reached(manifest["metadata"].get("resourceVersion", self._version))

    def _reached(self, version: str) -> None:
        self._version = version
        self._highest = max(self._highest, version_number(version))

    def _sign(self) -> None:
        self._sign_at = self._clock()

    def _missing(self, error: ObjectNotFound) -> None:
        """The server does not know the kind: no objects, if that is allowed, and a sign all the same."""
        was_there = self.has_listed and self.is_installed
        if not self._informer.options.optional or (was_there and self._failures < _SURELY_GONE):
            self._complain(error)
            return
        self._sign()
        self._version = ""
        self.has_listed, self.is_installed = True, False
        self._informer.sweep(self._namespace, set(), sys.maxsize)

    def _complain(self, error: ApiError) -> None:
        log.warning(
            "watch failed",
            kind=str(self._informer.kind),
            scope=self._namespace,
            failures=self._failures,
            error=truncated(error.message),
        )
