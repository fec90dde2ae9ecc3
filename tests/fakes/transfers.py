"""Transfers under way, for tests that interrupt them: when they have begun, and that nothing is left."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from omnistage_common.deadlines import Deadline
from omnistage_common.payloads import DeviceTensor, Tensor, TensorRef
from omnistage_common.tensors import LeaseOwner, TensorPlane

__all__ = ["Read", "churn", "nothing_is_held", "read", "read_to_device", "under_way"]

_ENOUGH: Final = 6.0
"""Seconds, which is twice what a frozen peer may cost."""

Read = Callable[[TensorPlane, TensorRef, LeaseOwner], Awaitable[Tensor | DeviceTensor]]
"""How a tensor is fetched."""


async def read(plane: TensorPlane, ref: TensorRef, owner: LeaseOwner = "reader") -> Tensor:
    """Fetches a tensor to the host, with a minute to go."""
    return await plane.fetch(ref, owner=owner, deadline=Deadline.after(60))


async def read_to_device(
    plane: TensorPlane, ref: TensorRef, owner: LeaseOwner = "reader"
) -> Tensor | DeviceTensor:
    """Fetches a tensor to the device, with a minute to go."""
    return await plane.fetch_to_device(ref, owner=owner, deadline=Deadline.after(60))


async def under_way(
    plane: TensorPlane, task: "asyncio.Task[Tensor] | asyncio.Task[Tensor | DeviceTensor]"
) -> None:
    """Returns when a fetch has its room and bytes come."""
    while not plane.statistics().received and not plane.statistics().device_leases:
        assert not task.done()
        await asyncio.sleep(0)


async def nothing_is_held(plane: TensorPlane) -> None:
    """Returns when no room is taken, once transfers that nobody waits for have ended."""

    def held() -> int:
        now = plane.statistics()
        return now.used_bytes + now.device_used_bytes + now.settling

    async with asyncio.timeout(_ENOUGH):
        while held():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


async def churn(
    consumer: TensorPlane,
    refs: list[TensorRef],
    chance: random.Random,
    count: int,
    fetch: Read = read,
) -> int:
    """Fetches, eight at a time, some cancelled on their way; how many were."""
    places = asyncio.Semaphore(8)

    async def request(number: int) -> None:
        async with places:
            ref = refs[number % len(refs)]
            try:
                tensor = await fetch(consumer, ref, number)
                await asyncio.sleep(0)
                assert tensor.header == ref.header
            finally:
                consumer.release_owner(number)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(request(number)) for number in range(count)]
        for task in chance.sample(tasks, count // 3):
            await asyncio.sleep(0)
            task.cancel()
    return sum(task.cancelled() for task in tasks)
