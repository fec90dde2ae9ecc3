"""Room in a slab or a device region: who gets some, who waits for some, and when it comes back.

Joins the allocator and the lease table to the event loop. Whoever finds no room waits in the order
of coming, large or small, so nobody starves; that wait is the back-pressure of the tensor plane.
There is one timer, set to the next deadline of a lease. The memory itself is the plane's: it is told
of a block before the block is given to somebody else.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import (
    DeadlineExceeded,
    Draining,
    OmnistageError,
    RequestCancelled,
    SetupError,
)
from omnistage_common.ids import LeaseId, new_tensor_token
from omnistage_common.tensors.allocation import Allocator
from omnistage_common.tensors.leases import Lease, LeaseOwner, LeaseState, LeaseTable

__all__ = ["Filling", "LeaseIds", "Room", "RoomStatistics", "Wish", "plane_closed"]

LeaseIds = Iterator[int]
"""Where the numbers of leases come from; rooms whose leases must not be confused share one."""
_SETTING: Final = "limits.slabBytes"


class Wish(Struct, frozen=True, kw_only=True):
    """A lease that a publisher wants."""

    owner: LeaseOwner
    length: int
    """Bytes of the tensor."""
    block: int
    """Bytes of room that takes."""
    deadline: Deadline


class RoomStatistics(Struct, frozen=True, kw_only=True):
    """What is taken, counted from what is there."""

    leases: int
    """Leases that have not ended."""
    used_bytes: int
    capacity: int
    """Bytes."""
    waiting: int
    """Those that wait for room."""
    settling: int
    """Blocks of ended leases that somebody still writes to."""


class Filling:
    """The writing of a block."""

    def __init__(self) -> None:
        self.writer: asyncio.Future[None] | None = None
        """Done when nobody writes any more, where that outlives the filling: a transfer that nobody
        waits for still writes. Until then the block is nobody else's."""


class Room:
    """Leases of blocks in memory of fixed size.

    Args:
        capacity: Bytes of the memory.
        on_free: Called with the offset of a block when nobody holds it any more.
        setting: Of the stage, that says how large it is.
        ids: Numbers of leases that other rooms take from, too.
    """

    def __init__(
        self,
        *,
        capacity: int,
        on_free: Callable[[int], None],
        setting: str = _SETTING,
        ids: LeaseIds | None = None,
    ) -> None:
        self._allocator = Allocator(capacity)
        self._on_free = on_free
        self._setting = setting
        self._leases = LeaseTable(ids)
        self._waiters: dict[asyncio.Future[Lease], Wish] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_deadline = math.inf
        self._closed = False

    @property
    def capacity(self) -> int:
        """Bytes of the memory."""
        return self._allocator.capacity

    async def lease(self, wish: Wish) -> Lease:
        """The lease that is wished for, FILLING; to be used with `filling` before the next wait.

        Raises:
            DeadlineExceeded: There was no room before the deadline.
            SetupError: There can never be.
            RequestCancelled: The owner was released meanwhile.
            Draining: The room is closed.
        """
        if self._closed:
            raise plane_closed()
        if not self._allocator.fits(wish.block):
            raise SetupError(
                f"a tensor of {wish.length} bytes does not fit into the tensor slab of"
                f" {self.capacity}: raise `{self._setting}` of the stage",
                field=self._setting,
            )
        if wish.deadline.passed:
            raise self._late(wish.length)
        lease = None if self._waiters else self._granted(wish)
        return lease or await self._wait(wish)

    @contextmanager
    def filling(self, lease: Lease) -> Iterator[Filling]:
        """Seals a lease when it is filled, and ends it when that fails or is cancelled."""
        filling = Filling()
        try:
            yield filling
            self.seal(lease)
        finally:
            if self.held(lease.id) is None:
                self.abandon(lease, filling.writer)

    def seal(self, lease: Lease) -> None:
        """Says that a lease is filled, with as many bytes as it says now.

        Raises:
            OmnistageError: It has ended meanwhile, as `lease` says it.
        """
        self.check_wanted(lease)
        self._leases.seal(lease.id, lease.length)

    def abandon(self, lease: Lease, writer: asyncio.Future[None] | None = None) -> None:
        """Ends a lease that was not sealed; its block is free once nobody writes to it."""
        if writer is None or writer.done():
            self._abandon(lease)
        else:
            self._leases.release([lease.id])
            writer.add_done_callback(lambda _: self._abandon(lease))

    def check_wanted(self, lease: Lease) -> None:
        """Stops the filling of a lease that has ended.

        Raises:
            OmnistageError: As `lease` does.
        """
        now = self._leases.get(lease.id)
        if now is None or now.state is not LeaseState.FILLING:
            raise self.why_ended(lease)

    def held(self, lease: LeaseId) -> Lease | None:
        """The lease, if it is HELD now."""
        found = self._leases.get(lease)
        return found if found is not None and found.state is LeaseState.HELD else None

    def unsealed(self, lease: LeaseId) -> bool:
        """Whether the writer of a lease has not stopped yet."""
        found = self._leases.get(lease)
        return found is not None and found.state is not LeaseState.HELD

    def release(self, leases: Iterable[LeaseId]) -> int:
        """Ends leases; how many of them had not ended before."""
        return self._reclaim(self._leases.release(leases))

    def release_owner(self, owner: LeaseOwner) -> int:
        """Ends every lease of an owner, and its waits; how many leases there were."""
        for waiter, wish in self._waiters.items():
            if wish.owner == owner and not waiter.done():
                waiter.set_exception(_unwanted())
        return self._reclaim(self._leases.release_owner(owner))

    def close(self) -> None:
        """Ends every lease and every wait. Idempotent."""
        self._closed = True
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(plane_closed())
        self._reclaim(self._leases.release_all())

    def statistics(self) -> RoomStatistics:
        """What is taken now."""
        leases = self._leases.statistics()
        return RoomStatistics(
            leases=leases.filling + leases.held,
            used_bytes=self._allocator.statistics().used,
            capacity=self.capacity,
            waiting=len(self._waiters),
            settling=leases.abandoned,
        )

    async def _wait(self, wish: Wish) -> Lease:
        waiter: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = wish
        try:
            async with asyncio.timeout(wish.deadline.remaining()):
                return await waiter
        except TimeoutError:
            self._withdraw(waiter)
            raise self._late(wish.length) from None
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise

    def _withdraw(self, waiter: asyncio.Future[Lease]) -> None:
        """Takes back a wait, and the lease it may have been given in the same turn."""
        self._waiters.pop(waiter, None)
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self._abandon(waiter.result())
        self._admit()

    def _admit(self) -> None:
        """Gives leases to those who wait, in their order, as far as the room goes."""
        while self._waiters:
            waiter, wish = next(iter(self._waiters.items()))
            if not waiter.done():
                lease = self._granted(wish)
                if lease is None:
                    return
                waiter.set_result(lease)
            del self._waiters[waiter]

    def _granted(self, wish: Wish) -> Lease | None:
        offset = self._allocator.allocate(wish.block)
        if offset is None:
            return None
        lease = self._leases.grant(
            owner=wish.owner,
            offset=offset,
            length=wish.length,
            deadline=wish.deadline.monotonic,
            token=new_tensor_token(),
        )
        self._arm(lease.deadline)
        return lease

    def _abandon(self, lease: Lease) -> None:
        self._leases.release([lease.id])
        self._reclaim([self._leases.seal(lease.id)])

    def _reclaim(self, leases: list[Lease]) -> int:
        """Gives back the room of those leases that have ended; how many leases were named."""
        for lease in leases:
            if lease.state is LeaseState.ENDED:
                self._on_free(lease.offset)
                self._allocator.free(lease.offset)
        self._admit()
        if self._timer is not None and self._leases.idle:
            self._disarm()
        return len(leases)

    def _arm(self, deadline: float) -> None:
        """Makes sure that the timer fires no later than this."""
        if deadline >= self._timer_deadline:
            return
        self._disarm()
        self._timer_deadline = deadline
        delay = max(0.0, deadline - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_deadline = None, math.inf

    def _on_timer(self) -> None:
        self._disarm()
        self._reclaim(self._leases.expire(time.monotonic()))
        following = self._leases.next_deadline
        if following is not None:
            self._arm(following)

    def why_ended(self, lease: Lease) -> OmnistageError:
        """What to tell somebody whose lease has ended."""
        if self._closed:
            return plane_closed()
        if lease.deadline <= time.monotonic():
            return self._late(lease.length)
        return _unwanted()

    def _late(self, length: int) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"no room for a tensor of {length} bytes in the tensor slab of {self.capacity} before"
            f" the request's deadline: {self._allocator.statistics().used} are held;"
            f" raise `{self._setting}` of the stage"
        )


def plane_closed() -> Draining:
    """What everybody hears after the plane was closed."""
    return Draining("the tensor plane of this process is closed")


def _unwanted() -> RequestCancelled:
    return RequestCancelled("the owner of the tensor was released meanwhile")
