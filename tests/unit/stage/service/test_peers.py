"""Links to producers: opened on demand, shared, and gone when they break or are not used."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fakes.fake_replica import FakeReplica, fake_replica
from omnistage_common.deadlines import Deadline
from omnistage_common.errors import OmnistageError, StageUnavailable
from omnistage_common.ids import Incarnation, OutputName, StreamToken
from omnistage_common.links.frames import Data, End, Error, Inlet, Progress, Subscribe
from omnistage_common.links.replica_link import ReplicaLink
from omnistage_stage.service.peers import Peers


class Listening:
    """A listener that wants to know how it ends."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[End | Error] = asyncio.get_running_loop().create_future()

    def received(self, frame: Data | Progress | End | Error) -> None:
        """See `Listener`."""
        if isinstance(frame, End | Error):
            self.ended.set_result(frame)

    async def error(self) -> OmnistageError:
        """How it ended badly."""
        frame = await asyncio.wait_for(self.ended, 10)
        assert isinstance(frame, Error)
        return frame.error


def address_of(replica: FakeReplica) -> str:
    return f"127.0.0.1:{replica.port}"


def subscribe(link: ReplicaLink) -> Listening:
    """Subscribes to something."""
    listening = Listening()
    inlet = Inlet(
        token=StreamToken("token"),
        address=link.endpoint.address,
        incarnation=Incarnation("fake"),
        outputs=(OutputName("codes"),),
    )
    link.subscribe(listening, inlet, Deadline.after(30))
    return listening


@asynccontextmanager
async def opened(*, idle_seconds: float = 30.0) -> AsyncIterator[Peers]:
    """A table that leaves no task behind."""
    before = asyncio.all_tasks()
    peers = Peers(idle_seconds=idle_seconds)
    try:
        yield peers
    finally:
        await peers.close()
    left = {task for task in asyncio.all_tasks() - before if task.get_name().startswith("peer")}
    assert (len(peers), left) == (0, set())


async def test_requests_from_one_producer_share_a_link_and_producers_do_not() -> None:
    async with fake_replica() as one, fake_replica() as two, opened() as peers:
        first, second = peers.join(address_of(one)), peers.join(address_of(one))
        other = peers.join(address_of(two))
        for link in (first, second, other):
            subscribe(link)
        await one.hears(Subscribe)
        await one.hears(Subscribe)
        await two.hears(Subscribe)

        assert first is second
        assert other is not first
        assert (len(peers), len(one.links), len(two.links)) == (2, 1, 1)


async def test_a_link_stays_open_for_the_next_request() -> None:
    async with fake_replica() as producer, opened() as peers:
        link = peers.join(address_of(producer))
        subscribe(link)
        await producer.hears(Subscribe)
        peers.leave(link)

        subscribe(peers.join(address_of(producer)))
        await producer.hears(Subscribe)

        assert len(producer.links) == 1


async def test_a_link_that_nobody_uses_is_closed_after_a_while() -> None:
    async with fake_replica() as producer, opened(idle_seconds=0.0) as peers:
        link, also = peers.join(address_of(producer)), peers.join(address_of(producer))
        peers.leave(link)
        await asyncio.sleep(0.01)
        assert len(peers) == 1, "another request uses it"

        peers.leave(also)
        await asyncio.sleep(0.01)

        assert len(peers) == 0


async def test_a_request_that_comes_in_time_keeps_an_unused_link() -> None:
    async with fake_replica() as producer, opened(idle_seconds=0.05) as peers:
        peers.leave(peers.join(address_of(producer)))

        listening = subscribe(peers.join(address_of(producer)))
        await asyncio.sleep(0.1)

        assert len(peers) == 1
        assert not listening.ended.done()


async def test_a_producer_that_is_gone_is_told_at_once_and_found_when_it_is_back() -> None:
    async with fake_replica() as producer, opened() as peers:
        broken = subscribe(peers.join(address_of(producer)))
        await producer.hears(Subscribe)

        await producer.stop()
        assert type(await broken.error()) is StageUnavailable
        begin = time.monotonic()
        absent = subscribe(peers.join(address_of(producer)))
        assert type(await absent.error()) is StageUnavailable
        assert time.monotonic() - begin < 1.0

        await producer.start()
        link = peers.join(address_of(producer))
        subscribe(link)
        await producer.hears(Subscribe)
        assert not link.over


async def test_giving_back_a_link_that_broke_does_not_touch_its_successor() -> None:
    async with fake_replica() as producer, opened(idle_seconds=0.0) as peers:
        broken = peers.join(address_of(producer))
        listening = subscribe(broken)
        await producer.hears(Subscribe)
        producer.end()
        await listening.error()
        fresh = peers.join(address_of(producer))

        peers.leave(broken)
        await asyncio.sleep(0.01)

        assert fresh is not broken
        assert len(peers) == 1


async def test_closing_fails_what_is_on_the_links() -> None:
    async with fake_replica() as producer:
        async with opened() as peers:
            listening = subscribe(peers.join(address_of(producer)))
            await producer.hears(Subscribe)

        assert type(await listening.error()) is StageUnavailable
        with pytest.raises(StageUnavailable, match="closing"):
            peers.join(address_of(producer))
