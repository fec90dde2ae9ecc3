"""The meeting of a gang: all come, and each side learns at once that the other is gone."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fakes.controlled import until
from fakes.stage_process import free_port
from omnistage_common.errors import EngineFailed, SetupError
from omnistage_stage.engines.protocol import Gang
from omnistage_stage.engines.rendezvous import Meeting, attend, resolved

HERE = "127.0.0.1"


class Leader:
    """A meeting, at a port of its own."""

    def __init__(self, size: int) -> None:
        self.port = free_port()
        self.meeting = Meeting(size)

    async def open(self, *, patience_s: float = 30.0) -> None:
        """Opens it."""
        await self.meeting.open(HERE, port=self.port, patience_s=patience_s)

    async def come(self, rank: int) -> None:
        """Follows it."""
        await attend(Gang(leader=HERE, rank=rank), port=self.port, patience_s=30.0)


@pytest.fixture
async def leader() -> AsyncIterator[Leader]:
    """Of a gang of three, that is closed in the end and leaves no task."""
    one = Leader(size=3)
    yield one
    await one.meeting.close()
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Ends a follower as the kernel would: its connection goes."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_it_is_open_when_all_have_come_in_whatever_order(leader: Leader) -> None:
    async with asyncio.TaskGroup() as tasks:
        late = tasks.create_task(leader.come(2))
        opening = tasks.create_task(leader.open())
        await until(lambda: leader.meeting.missing == [1])
        assert not opening.done()
        early = tasks.create_task(leader.come(1))
        await opening

        assert leader.meeting.missing == []
        assert not leader.meeting.broken
        for follower in (late, early):
            follower.cancel()


async def test_a_follower_leaves_when_the_leader_closes(leader: Leader) -> None:
    async with asyncio.TaskGroup() as tasks:
        for rank in (1, 2):
            tasks.create_task(leader.come(rank))
        await leader.open()
        await leader.meeting.close()


async def test_the_leader_learns_who_is_gone(leader: Leader) -> None:
    followers = [asyncio.create_task(leader.come(rank)) for rank in (1, 2)]
    await leader.open()

    await cancelled(followers[1])
    await until(lambda: leader.meeting.broken)

    with pytest.raises(EngineFailed, match="members 2 of the gang are lost"):
        leader.meeting.check()
    await cancelled(followers[0])


async def test_work_that_needs_all_is_done_while_all_are_there(leader: Leader) -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    async def mistake() -> None:
        raise ValueError("wrong")

    assert await leader.meeting.needing_all(work()) == "done"
    with pytest.raises(ValueError, match="wrong"):
        await leader.meeting.needing_all(mistake())


async def test_work_that_needs_all_fails_when_one_is_lost_though_it_never_returns(
    leader: Leader,
) -> None:
    followers = [asyncio.create_task(leader.come(rank)) for rank in (1, 2)]
    await leader.open()
    working = asyncio.create_task(leader.meeting.needing_all(asyncio.Event().wait()))

    await cancelled(followers[0])

    with pytest.raises(EngineFailed, match="members 1 of the gang are lost"):
        await working
    await cancelled(followers[1])


async def test_work_that_is_cancelled_is_waited_for(leader: Leader) -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    working = asyncio.create_task(leader.meeting.needing_all(work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    await cancelled(working)

    assert ended == [True]


@pytest.mark.parametrize("rank", [0, 3, 1], ids=["the leader's", "beyond", "taken"])
async def test_a_stranger_is_sent_away_and_changes_nothing(leader: Leader, rank: int) -> None:
    opening = asyncio.create_task(leader.open())
    first = asyncio.create_task(leader.come(1))
    await until(lambda: leader.meeting.missing == [2])

    await leader.come(rank)

    assert leader.meeting.missing == [2]
    assert not leader.meeting.broken
    await cancelled(first)
    await cancelled(opening)


async def test_a_caller_who_says_nothing_is_let_go(leader: Leader) -> None:
    opening = asyncio.create_task(leader.open())
    await until(lambda: not opening.done() and reachable(leader.port))

    _, writer = await asyncio.open_connection(HERE, leader.port)
    writer.close()

    assert leader.meeting.missing == [1, 2]
    await cancelled(opening)


def reachable(port: int) -> bool:
    """Whether somebody listens."""
    with socket.socket() as caller:
        return caller.connect_ex((HERE, port)) == 0


async def test_those_who_do_not_come_are_named(leader: Leader) -> None:
    with pytest.raises(SetupError, match="members 1, 2 of the gang have not come") as late:
        await leader.open(patience_s=0.05)

    assert late.value.field == "--gang-leader"


async def test_a_leader_that_is_not_there_is_named() -> None:
    gang = Gang(leader=HERE, rank=1)

    with pytest.raises(SetupError, match=f"the leader {HERE}:[0-9]+ is not reached"):
        await attend(gang, port=free_port(), patience_s=0.1)


async def test_an_address_that_is_taken_is_named() -> None:
    with socket.create_server((HERE, 0)) as taken:
        meeting = Meeting(2)
        with pytest.raises(SetupError, match="the gang cannot meet at"):
            await meeting.open(HERE, port=taken.getsockname()[1])


async def test_a_name_is_waited_for_and_then_an_address() -> None:
    assert await resolved("localhost") in {"127.0.0.1", "::1"}

    with pytest.raises(SetupError, match=r"the leader nobody\.invalid has no address"):
        await resolved("nobody.invalid", patience_s=0.1)
