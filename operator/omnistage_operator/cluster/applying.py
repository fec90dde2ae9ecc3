"""The executor: makes the cluster hold what a planner intends, and writes only where it does not.

Whether to write is decided by comparing intent and live object, not by remembering, so a restarted
operator and an idle one write nothing. Children carry a digest of their intent as an annotation: a
field that an intent no longer has is still in the live object, and only the digest tells that a
write has to take it out. What a write did not change (a field that the server leaves out or writes
otherwise) is remembered as long as the process lives, and is no reason to write again.

A status is ours in part: other managers may own fields of it, which are left aside.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import structlog
import xxhash

from omnistage_common.cluster.api import Api
from omnistage_common.cluster.caches import Caches
from omnistage_common.cluster.errors import ObjectNotFound
from omnistage_common.cluster.kinds import ResourceKind, kind_of
from omnistage_common.cluster.manifests import (
    Manifest,
    ObjectKey,
    is_deleted,
    key_of,
    uid_of,
)
from omnistage_operator.control.holding import differences
from omnistage_operator.control.metrics import OperatorMetrics, WriteAction

__all__ = ["INTENT_ANNOTATION", "Applier", "stamped"]

log = structlog.get_logger(__name__)

INTENT_ANNOTATION: Final = "omnistage.io/intent"
"""Digest of what the operator intended when it wrote the object last."""


def stamped(intent: Manifest) -> Manifest:
    """The intent with its digest; the intent itself stays as it is."""
    encoded = msgspec.json.encode(intent, order="deterministic")
    metadata = intent["metadata"]
    annotations = {
        **(metadata.get("annotations") or {}),
        INTENT_ANNOTATION: xxhash.xxh64_hexdigest(encoded),
    }
    return {**intent, "metadata": {**metadata, "annotations": annotations}}


class Applier:
    """Writes for one field manager. Planners hand in whole intents and never see a request."""

    def __init__(self, *, api: Api, caches: Caches, metrics: OperatorMetrics) -> None:
        self._api = api
        self._caches = caches
        self._metrics = metrics
        self._residue: dict[tuple[ResourceKind, ObjectKey], tuple[str, frozenset[str]]] = {}
        """Per object: digest of the intent applied last, and what the answer did not hold of it."""

    async def apply(self, intent: Manifest, *, force: bool = True) -> Manifest:
        """Makes the live object hold the intent; the live object.

        Args:
            intent: A whole object: apiVersion, kind, metadata and every field that the operator
                wants to own; what it leaves out it leaves to others.
            force: Take fields over from other managers.

        Raises:
            WriteConflict: Without force, another manager owns a field.
            ObjectInvalid: The API server refuses the intent.
            WriteFenced: This process may not write.
        """
        kind = kind_of(intent)
        wanted = stamped(intent)
        live = await self._live(kind, key_of(intent))
        if live is not None and not self._differs(kind, live, wanted):
            self._metrics.wrote(str(kind), WriteAction.SKIP)
            return live
        answer = await self._api.apply(wanted, kind, force=force)
        self._metrics.wrote(str(kind), WriteAction.APPLY)
        self._remember(kind, answer, wanted)
        self._caches.observe(answer, kind)
        return answer

    async def apply_all(self, intents: Iterable[Manifest]) -> list[Manifest]:
        """Applies one after the other, in the order given; the live objects."""
        return [await self.apply(intent) for intent in intents]

    async def write_status(
        self, live: Manifest, status: dict[str, Any], *, foreign: Iterable[str] = ()
    ) -> bool:
        """Writes what the operator says about an object, if it says something new.

        Args:
            live: The object that the status is about.
            status: All that the operator says; what it said before and says no longer is removed.
            foreign: Fields of the status that other managers write.

        Returns:
            Whether it was written.

        Raises:
            WriteConflict: Another object has the name by now.
            WriteFenced: This process may not write.
        """
        kind = kind_of(live)
        others = frozenset(foreign)
        said = {
            name: value for name, value in (live.get("status") or {}).items() if name not in others
        }
        if not differences({"status": said}, {"status": status}) and not differences(
            {"status": status}, {"status": said}
        ):
            self._metrics.wrote(str(kind), WriteAction.STATUS_SKIP)
            return False
        key = key_of(live)
        metadata = {"name": key.name, "uid": uid_of(live)}
        if key.namespace:
            metadata["namespace"] = key.namespace
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": metadata,
            "status": status,
        }
        try:
            answer = await self._api.apply_status(body, kind)
        except ObjectNotFound:
            return False
        self._metrics.wrote(str(kind), WriteAction.STATUS)
        self._caches.observe(answer, kind)
        return True

    async def empty_status(self, live: Manifest, manager: str, field: str) -> None:
        """Takes out of a list of the status what a manager that is gone has put there.

        Args:
            live: The object.
            manager: Who put it there.
            field: Name of the list.

        Raises:
            WriteFenced: This process may not write.
        """
        kind, key = kind_of(live), key_of(live)
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": key.name, "namespace": key.namespace},
            "status": {field: []},
        }
        try:
            answer = await self._api.speaking_as(manager).apply_status(body, kind)
        except ObjectNotFound:
            return
        self._metrics.wrote(str(kind), WriteAction.STATUS)
        self._caches.observe(answer, kind)

    async def delete(self, live: Manifest) -> None:
        """Deletes this very object; one that is gone, or on its way, is left alone.

        Raises:
            WriteConflict: Another object has the name by now.
            WriteFenced: This process may not write.
        """
        if is_deleted(live):
            return
        kind = kind_of(live)
        self._residue.pop((kind, key_of(live)), None)
        await self._api.delete(kind, key_of(live), uid=uid_of(live))
        self._metrics.wrote(str(kind), WriteAction.DELETE)

    async def prune(
        self, owner: Manifest, *, keep: Iterable[Manifest], kinds: Sequence[ResourceKind]
    ) -> list[ObjectKey]:
        """Deletes what the owner has and no intent keeps; where that was.

        Args:
            owner: Whose children; found by its uid in the caches of `kinds`.
            keep: The intents, or live objects, that stay.
            kinds: Which kinds of children; each must be watched.
        """
        kept = {(kind_of(manifest), key_of(manifest)) for manifest in keep}
        pruned = []
        for kind in kinds:
            for live in self._caches.store(kind).owned_by(uid_of(owner)):
                key = key_of(live)
                if (kind, key) not in kept and not is_deleted(live):
                    await self.delete(live)
                    pruned.append(key)
        return pruned

    async def _live(self, kind: ResourceKind, key: ObjectKey) -> Manifest | None:
        """From the cache; of a kind that is not watched, from the API server."""
        informer = self._caches.find(kind)
        if informer is not None:
            return informer.store.get(key)
        try:
            return await self._api.get(kind, key)
        except ObjectNotFound:
            return None

    def _differs(self, kind: ResourceKind, live: Manifest, wanted: Manifest) -> bool:
        found = differences(live, wanted)
        if not found:
            return False
        digest, residue = self._residue.get((kind, key_of(wanted)), ("", frozenset()))
        return digest != _digest_of(wanted) or not found <= residue

    def _remember(self, kind: ResourceKind, answer: Manifest, wanted: Manifest) -> None:
        place = (kind, key_of(wanted))
        residue = differences(answer, wanted)
        if not residue:
            self._residue.pop(place, None)
            return
        known = self._residue.get(place)
        self._residue[place] = (_digest_of(wanted), residue)
        if known != self._residue[place]:
            log.info(
                "the API server did not keep every field",
                kind=str(kind),
                key=str(place[1]),
                fields=sorted(residue),
            )


def _digest_of(wanted: Manifest) -> str:
    digest: str = wanted["metadata"]["annotations"][INTENT_ANNOTATION]
    return digest
