"""What a request gets from its producers while it runs: subscriptions made into iterators.

It subscribes as soon as the request is accepted, so that data is under way while the request waits for
its place. A piece is done with when the next one of its port is asked for; until then its tensor is
valid, in the producer's memory where that can be read.

Where several ports arrive, an engine may wait for one while frames for the others fill the window, or
their tensors the producer's slab; neither would ever move again. So there, a tensor by reference is
copied when it is handed out, and whoever waits at an empty port first takes out of the producers' hands
what has come for the others. What is held here is then bounded by what the producers make, and by
nothing else.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Final, Protocol, TypeVar

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import InvalidRequest, OmnistageError, TensorLost
from omnistage_common.ids import OutputName
from omnistage_common.links.frames import Inlet
from omnistage_common.payloads import Payload, Tensor, TensorRef
from omnistage_common.tensors import LeaseOwner, TensorPlane
from omnistage_stage.service.feeds import Feed, Piece
from omnistage_stage.service.peers import Peers

__all__ = ["Intake", "Port"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_COPIED_AT_ONCE: Final = 2 * 1024 * 1024
"""Bytes copied before others have their turn; takes about a tenth of a millisecond."""
_CAUSE_SECONDS: Final = 0.25
"""The tensors of a producer that fails are gone a moment before its error is here."""


class _Fetch(Protocol[T_co]):
    """How a tensor is fetched: to the host, or to the device where that can be."""

    def __call__(
        self, ref: TensorRef, /, *, owner: LeaseOwner, deadline: Deadline
    ) -> Awaitable[T_co]: ...


class Port:
    """The pieces of one output, as an engine iterates them."""

    def __init__(self, intake: "Intake", feed: Feed, name: OutputName) -> None:
        self._intake = intake
        self._feed = feed
        self._queue = feed.queues[name]
        self._current: Piece | None = None

    def __aiter__(self) -> "Port":
        return self

    async def __anext__(self) -> Payload:
        self.put_away()
        while not self._queue:
            self._check_lost()
            if self._feed.ended:
                raise StopAsyncIteration
            await self._intake.news()
        piece = self._queue[0]
        payload = await self._intake.at_hand(piece, self._feed)
        self._current = piece
        self._check_lost()
        self._queue.popleft()
        return payload

    def put_away(self) -> None:
        """The piece that was handed out last is done with. Idempotent."""
        piece, self._current = self._current, None
        if piece is not None:
            self._intake.put_away(piece, self._feed)

    def _check_lost(self) -> None:
        if self._feed.error is not None:
            raise self._feed.error


class Intake:
    """The inlets of one request.

    Args:
        inlets: Where to subscribe, and to what.
        deadline: Of the request.

    Raises:
        InvalidRequest: Two inlets bring the same output.
    """

    def __init__(
        self, inlets: tuple[Inlet, ...], *, deadline: Deadline, plane: TensorPlane, peers: Peers
    ) -> None:
        self._deadline = deadline
        self._plane = plane
        self._peers = peers
        self._feeds: list[Feed] = []
        self._ports: dict[OutputName, Port] = {}
        self._waiters: set[asyncio.Future[None]] = set()
        self._copying = asyncio.Lock()
        for inlet in inlets:
            self._add(inlet)

    def _add(self, inlet: Inlet) -> None:
        feed = Feed(inlet, news=self._tell)
        self._feeds.append(feed)
        for name in inlet.outputs:
            if name in self._ports:
                raise InvalidRequest(f"two inlets bring {name!r}", field="inlets")
            self._ports[name] = Port(self, feed, name)

    @property
    def streams(self) -> Mapping[OutputName, Port]:
        """Name of an output -> its pieces."""
        return self._ports

    def open(self) -> None:
        """Subscribes.

        Raises:
            StageUnavailable: This replica is closing.
        """
        for feed in self._feeds:
            feed.open(self._peers, self._deadline)

    def close(self) -> None:
        """Wants nothing more of any producer. Idempotent."""
        for feed in self._feeds:
            feed.close("the consumer has ended")
        for port in self._ports.values():
            port.put_away()

    def raised(self, error: OmnistageError) -> bool:
        """Whether an error is a producer's, and not of whoever read from it."""
        return any(feed.error is error for feed in self._feeds)

    async def at_hand(self, piece: Piece, feed: Feed) -> Payload:
        """A piece with its tensor to be read."""
        if piece.refers and len(self._ports) > 1:
            await self._take_over(piece, feed)
        content = piece.payload.content
        if isinstance(content, TensorRef):
            fetched = await self._fetched(self._plane.fetch_to_device, content, piece, feed)
            return Payload(kind=piece.payload.kind, content=fetched)
        return piece.payload

    def put_away(self, piece: Piece, feed: Feed) -> None:
        """A piece that was handed out is done with."""
        if piece.refers:
            self._plane.release_owner(piece)
        feed.let_go(piece)

    async def news(self) -> None:
        """Returns when there may be something at a port that was empty."""
        if len(self._ports) > 1:
            for feed in self._feeds:
                piece = feed.oldest_kept()
                if piece is not None:
                    await self._take_over(piece, feed)
                    return
        await self._told()

    async def _told(self) -> None:
        """Returns when something came from a producer."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _tell(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _fetched(self, fetch: _Fetch[T], ref: TensorRef, piece: Piece, feed: Feed) -> T:
        """The tensor of a piece, by one of the ways of the plane.

        Raises:
            OmnistageError: It is lost; where its producer has failed, as the producer says why.
        """
        try:
            return await fetch(ref, owner=piece, deadline=self._deadline)
        except TensorLost as lost:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CAUSE_SECONDS):
                    while feed.error is None and not feed.ended:
                        await self._told()
            raise feed.error or lost from lost

    async def _take_over(self, piece: Piece, feed: Feed) -> None:
        """Makes a piece our own, so that its producer need not keep it."""
        async with self._copying:
            content = piece.payload.content
            if isinstance(content, TensorRef):
                try:
                    own = await _copied(
                        await self._fetched(self._plane.fetch, content, piece, feed)
                    )
                finally:
                    self._plane.release_owner(piece)
                piece.payload = Payload(kind=piece.payload.kind, content=own)
            feed.let_go(piece)


async def _copied(tensor: Tensor) -> Tensor:
    """The same tensor in memory of its own."""
    source = memoryview(tensor.data).cast("B")
    if source.nbytes <= _COPIED_AT_ONCE:
        return Tensor(header=tensor.header, data=bytes(source))
    memory = bytearray(source.nbytes)
    target = memoryview(memory)
    for start in range(0, source.nbytes, _COPIED_AT_ONCE):
        target[start : start + _COPIED_AT_ONCE] = source[start : start + _COPIED_AT_ONCE]
        await asyncio.sleep(0)
    return Tensor(header=tensor.header, data=target.toreadonly())
