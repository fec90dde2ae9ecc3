"""Links to the replicas that this one fetches from: opened on demand, shared, closed when not used.

Requests that stream from the same producer share one link. A link that broke is gone: what was on it
has failed, and the next request opens a fresh one, at once. Whoever made the table closes it, and waits
for the links' tasks by that; nothing looks at a clock but the one timer of each unused link.
"""

import asyncio
from functools import partial
from typing import Final

from msgspec import Struct

from omnistage_common.errors import StageUnavailable
from omnistage_common.ids import ReplicaId, StageName
from omnistage_common.links.replica_link import ReplicaLink

__all__ = ["IDLE_SECONDS", "Peers"]

IDLE_SECONDS: Final = 30.0
"""How long a link without requests stays open."""


class _Endpoint(Struct, frozen=True, kw_only=True):
    """A producer, of which only the address is known here."""

    address: str
    stage: StageName = StageName("")

    @property
    def replica(self) -> ReplicaId:
        """What it is called in messages and logs."""
        return ReplicaId(self.address)


class _Peer:
    __slots__ = ("idle", "link", "task", "users")

    def __init__(self, address: str) -> None:
        self.link = ReplicaLink(_Endpoint(address=address))
        self.task = asyncio.create_task(self.link.run_once(), name=f"peer {address}")
        self.users = 0
        self.idle: asyncio.TimerHandle | None = None


class Peers:
    """See the module.

    Args:
        idle_seconds: How long a link without requests stays open.
    """

    def __init__(self, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._peers: dict[str, _Peer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._peers)

    def join(self, address: str) -> ReplicaLink:
        """The link to a replica, for one request; to be given back with `leave`.

        Raises:
            StageUnavailable: This replica is closing.
        """
        peer = self._peers.get(address)
        if peer is None or peer.link.over:
            peer = self._opened(address)
        if peer.idle is not None:
            peer.idle.cancel()
            peer.idle = None
        peer.users += 1
        return peer.link

    def leave(self, link: ReplicaLink) -> None:
        """One request less; the last one leaves the link open for a while."""
        peer = self._peers.get(link.endpoint.address)
        if peer is None or peer.link is not link:
            return
        peer.users -= 1
        if not peer.users:
            loop = asyncio.get_running_loop()
            peer.idle = loop.call_later(self._idle_seconds, self._end, peer)

    async def close(self) -> None:
        """Closes every link; what was on them has failed then."""
        self._closed = True
        for peer in tuple(self._peers.values()):
            self._end(peer)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _opened(self, address: str) -> _Peer:
        if self._closed:
            raise StageUnavailable("this replica is closing and fetches nothing any more")
        peer = self._peers[address] = _Peer(address)
        self._tasks.add(peer.task)
        peer.task.add_done_callback(partial(self._ended, peer))
        return peer

    def _ended(self, peer: _Peer, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._end(peer)

    def _end(self, peer: _Peer) -> None:
        peer.task.cancel()
        if peer.idle is not None:
            peer.idle.cancel()
            peer.idle = None
        address = peer.link.endpoint.address
        if self._peers.get(address) is peer:
            del self._peers[address]
