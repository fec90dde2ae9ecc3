"""A replica of several processes: one serves, the others follow it, and all of them go together.

Each gang has a loopback address of its own, as each has one of its own in a cluster.
"""

import itertools
import signal
from collections.abc import Callable
from typing import Final

import grpc.aio
import msgspec
import pytest

from fakes.grpc_doors import is_serving
from fakes.link_client import grpc_link
from fakes.stage_process import StageProcess, stage_plan
from omnistage_common.payloads import PayloadKind
from omnistage_common.pipeline.plan import ParallelPlan, PipelinePlan
from omnistage_stage.engines.protocol import Gang

StartStage = Callable[..., StageProcess]
TEXT: Final = {"text": PayloadKind.TEXT}

addresses = (f"127.0.0.{number}" for number in itertools.count(2))


def gang_plan(nodes: int, **arguments: object) -> PipelinePlan:
    """A plan of one stage that spans nodes."""
    plan = stage_plan({"outputs": {"text": {"text": "la", "when": "step"}}, **arguments}, TEXT)
    (stage,) = plan.stages
    parallelism = ParallelPlan(tensor=nodes, nodes=nodes)
    return msgspec.structs.replace(
        plan, stages=(msgspec.structs.replace(stage, parallelism=parallelism),)
    )


async def serves(process: StageProcess, service: str = "") -> bool:
    """What the health of a process says."""
    async with grpc.aio.insecure_channel(process.address) as channel:
        return await is_serving(channel, service)


class Members:
    """The processes of one replica."""

    def __init__(self, start: StartStage, nodes: int, **arguments: object) -> None:
        self._start = start
        self._plan = gang_plan(nodes, **arguments)
        self._leader = next(addresses)

    def start(self, rank: int) -> StageProcess:
        """Starts one of them."""
        return self._start(plan=self._plan, gang=Gang(leader=self._leader, rank=rank))


@pytest.fixture
def members(start_stage: StartStage) -> Members:
    """Of a replica on two nodes, that takes its time."""
    return Members(start_stage, 2, steps=1000, step_seconds=0.05)


async def test_the_leader_is_ready_when_every_follower_has_come(start_stage: StartStage) -> None:
    three = Members(start_stage, 3, steps=1)
    leader = three.start(0)
    await leader.said("listening")
    followers = [three.start(1)]
    await followers[0].said("came to the gang")
    assert not await serves(leader)
    assert await serves(leader, "omnistage.liveness")

    followers.append(three.start(2))
    await leader.said("ready")

    assert [await serves(each) for each in (leader, *followers)] == [True] * 3
    async with grpc_link(leader.address) as client:
        await client.ended(await client.open())


async def test_a_lost_follower_fails_what_runs_and_the_leader_ends(members: Members) -> None:
    leader, follower = members.start(0), members.start(1)
    await leader.said("ready")
    async with grpc_link(leader.address) as client:
        request = await client.open()
        await client.until(lambda: client.text(request) != "")

        follower.send(signal.SIGKILL)

        failure = await client.failed(request)
        assert "members 1 of the gang are lost" in failure.error.message
        assert await leader.exit_code() == 1


async def test_a_follower_ends_with_its_leader(members: Members) -> None:
    leader, follower = members.start(0), members.start(1)
    await leader.said("ready")

    leader.send(signal.SIGKILL)

    assert await follower.exit_code() == 1
    assert "the leader has gone; the gang starts anew" in follower.log[-1]


async def test_a_drain_needs_the_follower_to_its_end(start_stage: StartStage) -> None:
    two = Members(start_stage, 2, steps=10, step_seconds=0.05)
    leader, follower = two.start(0), two.start(1)
    await leader.said("ready")
    async with grpc_link(leader.address) as client:
        request = await client.open()
        await client.until(lambda: client.text(request) != "")

        follower.send(signal.SIGTERM)
        await follower.said("told to stop; it goes when the leader has gone")
        leader.send(signal.SIGTERM)

        await client.ended(request)
    assert await leader.exit_code() == 0
    assert await follower.exit_code() == 0


@pytest.mark.parametrize(
    ("nodes", "gang", "words"),
    [
        (2, None, "has parallelism.nodes 2, and this process is told no --gang-rank"),
        (1, Gang(leader="127.0.0.1", rank=0), "parallelism.nodes 1, and this process is told"),
        (2, Gang(leader="127.0.0.1", rank=2), "is told --gang-rank 2"),
    ],
    ids=["no gang", "no nodes", "beyond"],
)
async def test_what_does_not_fit_is_refused(
    start_stage: StartStage, nodes: int, gang: Gang | None, words: str
) -> None:
    process = start_stage(plan=gang_plan(nodes), gang=gang)

    assert await process.exit_code() == 3
    assert words in process.log[-1]
