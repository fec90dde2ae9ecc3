"""Leader election by a Lease, and the fence that holds writes back when it is lost.

The official client has an election too. It was not used: an unreachable API server ends it with an
exception of the connection, it writes local time, it does not give the lease back, and it only
cancels a task, while a write that is under way then may still land. Here the fence closes by itself
at an instant before any other candidate may take over, and the lease is given back on the way out, so
a successor starts at once.

Readiness has nothing to do with it: a candidate that waits is as ready as the leader.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

import structlog

from omnistage_common.cluster.api import Api, Limits
from omnistage_common.cluster.errors import ApiError, ObjectNotFound
from omnistage_common.cluster.fencing import Fence
from omnistage_common.cluster.kinds import LEASES
from omnistage_common.cluster.manifests import Manifest, ObjectKey
from omnistage_common.errors import truncated
from omnistage_operator.control.leadership import Candidacy, Claim, LeaseRecord, LeaseTimings

__all__ = ["Election"]

log = structlog.get_logger(__name__)

_GIVE_BACK_S: Final = 2.0
"""For giving the lease back on the way out; without it the successor waits the lease out."""


class _Standing(Enum):
    HELD = "held"
    NOT_HELD = "not held"
    UNKNOWN = "unknown"
    """The API server gave no answer."""


class Election:
    """One candidate for one lease."""

    def __init__(
        self,
        *,
        api: Api,
        lease: ObjectKey,
        identity: str,
        fence: Fence,
        timings: LeaseTimings | None = None,
        owner: Manifest | None = None,
    ) -> None:
        """Does nothing before `run`.

        Args:
            api: The way to the API server; the lease has its own pace, ahead of queued writes.
            lease: Where the lease is.
            identity: Unique to this process over time, e.g. pod name and uid.
            fence: Opened while this process leads; every other write must ask it.
            timings: How long a lease lasts.
            owner: Reference to what the lease goes with; None for nothing.
        """
        self._owner = owner
        self._timings = timings or LeaseTimings()
        self._api = api.unfenced(Limits.once(request_s=self._timings.renew_s / 2))
        self._lease = lease
        self._candidacy = Candidacy(identity)
        self._fence = fence
        self._clock = time.monotonic
        self._live: Manifest | None = None
        """The lease as it was read or written last."""

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Campaigns until cancelled; runs `lead` while leading, and cancels it when that ends.

        Returns when `lead` returns. The lease is given back in each case.

        Raises:
            ExceptionGroup: Of what `lead` raised.
        """
        while True:
            await self._campaign()
            try:
                over = await self._term(lead)
            finally:
                self._fence.close()
                await self._give_back()
            if over:
                return
            log.warning("leadership lost", lease=str(self._lease))
            await asyncio.sleep(self._timings.retry_s)

    async def _term(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Leads as long as the lease is held; whether `lead` came to its end."""
        async with asyncio.TaskGroup() as tasks:
            leading = tasks.create_task(lead(), name="leading")
            holding = tasks.create_task(self._hold(), name="holding the lease")
            await asyncio.wait({leading, holding}, return_when=asyncio.FIRST_COMPLETED)
            leading.cancel()
            holding.cancel()
        return not leading.cancelled()

    async def _campaign(self) -> None:
        """Returns once the lease is ours and the fence is open."""
        log.info("waiting for leadership", lease=str(self._lease))
        while True:
            asked_at = self._clock()
            if await self._claim(asked_at) is _Standing.HELD:
                self._fence.open_until(asked_at + self._timings.renew_s)
                log.info("leading", lease=str(self._lease))
                return
            await asyncio.sleep(self._timings.retry_s)

    async def _hold(self) -> None:
        """Renews; returns once the lease is lost or could not be renewed in time."""
        while self._fence.is_open:
            await asyncio.sleep(min(self._timings.retry_s, self._fence.remaining()))
            asked_at = self._clock()
            standing = await self._claim_while_open(asked_at)
            if standing is _Standing.HELD:
                self._fence.open_until(asked_at + self._timings.renew_s)
            elif standing is _Standing.NOT_HELD:
                self._fence.close()

    async def _claim_while_open(self, now: float) -> _Standing:
        """A claim that is given up when the fence closes, whatever the connection does."""
        try:
            async with asyncio.timeout(self._fence.remaining()):
                return await self._claim(now)
        except TimeoutError:
            return _Standing.UNKNOWN

    async def _claim(self, now: float) -> _Standing:
        try:
            self._live = await self._read()
            record = _record_of(self._live) if self._live is not None else None
            claim = self._candidacy.claim(record, now)
            if claim is Claim.WAIT:
                return _Standing.NOT_HELD
            await self._write(claim, record)
        except ApiError as error:
            log.warning("lease not renewed", lease=str(self._lease), error=truncated(error.message))
            return _Standing.UNKNOWN
        return _Standing.HELD

    async def _read(self) -> Manifest | None:
        try:
            return await self._api.get(LEASES, self._lease)
        except ObjectNotFound:
            return None

    async def _write(self, claim: Claim, record: LeaseRecord | None) -> None:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        before = (self._live or {}).get("spec") or {}
        transitions = record.transitions if record is not None else 0
        spec: dict[str, Any] = {
            "holderIdentity": self._candidacy.identity,
            "leaseDurationSeconds": max(1, round(self._timings.lease_s)),
            "acquireTime": before.get("acquireTime", now) if claim is Claim.RENEW else now,
            "renewTime": now,
            "leaseTransitions": transitions + (claim is Claim.TAKE),
        }
        await self._put(spec)

    async def _put(self, spec: dict[str, Any]) -> None:
        if self._live is None:
            metadata: dict[str, Any] = {
                "name": self._lease.name,
                "namespace": self._lease.namespace,
            }
            if self._owner is not None:
                metadata["ownerReferences"] = [self._owner]
            manifest = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": metadata,
                "spec": spec,
            }
            self._live = await self._api.create(manifest, LEASES)
        else:
            self._live = await self._api.replace({**self._live, "spec": spec}, LEASES)

    async def _give_back(self) -> None:
        """Lets a successor start at once; a lease that is not ours any more is left alone."""
        if self._live is None or _record_of(self._live).holder != self._candidacy.identity:
            return
        spec = {**self._live["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            async with asyncio.timeout(_GIVE_BACK_S):
                await self._put(spec)
        except (ApiError, TimeoutError) as error:
            log.warning("lease not given back", lease=str(self._lease), error=str(error))
        else:
            log.info("lease given back", lease=str(self._lease))


def _record_of(lease: Manifest) -> LeaseRecord:
    """What a lease says."""
    spec = lease.get("spec") or {}
    return LeaseRecord(
        holder=spec.get("holderIdentity") or "",
        duration_s=spec.get("leaseDurationSeconds") or 0,
        renewed=spec.get("renewTime") or "",
        transitions=spec.get("leaseTransitions") or 0,
    )
