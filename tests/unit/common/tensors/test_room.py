"""Room whose writer outlives whoever wanted it: nobody else gets the block before it has stopped."""

import asyncio
from contextlib import suppress

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import RequestCancelled
from omnistage_common.tensors.room import Room, Wish


def wish(owner: str = "a", block: int = 1024) -> Wish:
    return Wish(owner=owner, length=block, block=block, deadline=Deadline.after(60))


async def test_a_block_is_free_when_its_writer_has_stopped_and_not_before() -> None:
    freed: list[int] = []
    room = Room(capacity=1024, on_free=freed.append)
    writer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    lease = await room.lease(wish())

    with suppress(ZeroDivisionError), room.filling(lease) as filling:
        filling.writer = writer
        raise ZeroDivisionError
    now = room.statistics()
    assert (now.leases, now.settling, now.used_bytes, freed) == (0, 1, 1024, [])
    waiting = asyncio.create_task(room.lease(wish("b")))
    await asyncio.sleep(0)
    assert room.statistics().waiting == 1

    writer.set_result(None)
    assert (await waiting).owner == "b"
    assert freed == [0]
    assert room.statistics().settling == 0


async def test_a_writer_that_has_stopped_is_not_waited_for() -> None:
    room = Room(capacity=1024, on_free=lambda _: None)
    writer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    writer.set_result(None)
    lease = await room.lease(wish())
    room.release_owner("a")

    with suppress(RequestCancelled), room.filling(lease) as filling:
        filling.writer = writer
    assert room.statistics().used_bytes == 0


async def test_closing_leaves_a_block_to_its_writer() -> None:
    room = Room(capacity=1024, on_free=lambda _: None)
    writer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    lease = await room.lease(wish())
    room.abandon(lease, writer)

    room.close()
    assert room.statistics().used_bytes == 1024
    writer.set_result(None)
    await asyncio.sleep(0)
    assert room.statistics().used_bytes == 0
