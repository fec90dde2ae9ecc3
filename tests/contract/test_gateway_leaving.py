"""A gateway process that is told to stop while its clients keep asking: nobody is refused too early."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
from msgspec.structs import replace

from fakes.deployment import Gateway
from fakes.echo_replica import EchoReplica
from fakes.graphs import graph_plan
from fakes.raw_client import PATH, question
from fakes.stage_process import free_port
from omnistage_common.ids import ReplicaId, StageName
from omnistage_common.pipeline.plan import Timeouts, encode_plan
from omnistage_gateway.replicas.endpoints import ReplicaEndpoint

PLAN = replace(
    graph_plan({"thinker": "conversation"}, outputs={"thinker.text": "text"}, name="omni"),
    timeouts=Timeouts(request=30.0, drain=20.0),
)
ENOUGH_S = 20.0


@asynccontextmanager
async def running(folder: Path, *arguments: str) -> AsyncIterator[tuple[Gateway, EchoReplica]]:
    """A gateway process before one replica of this process."""
    async with AsyncExitStack() as stack:
        replica = EchoReplica("thinker-0")
        await replica.start()
        stack.push_async_callback(replica.stop)
        (folder / "plan.json").write_bytes(encode_plan(PLAN))
        endpoint = ReplicaEndpoint(
            stage=StageName("thinker"),
            replica=ReplicaId("thinker-0"),
            address=f"127.0.0.1:{replica.port}",
        )
        (folder / "endpoints.json").write_bytes(msgspec.json.encode({"replicas": [endpoint]}))
        gateway = Gateway("gateway", free_port(), folder, arguments)
        gateway.start()
        stack.callback(gateway.close)
        await asyncio.to_thread(gateway.wait_ready)
        yield gateway, replica


async def test_requests_are_let_in_while_load_balancers_learn_of_it(tmp_path: Path) -> None:
    """Clients keep their connections; as one that balances load, they go when `/readyz` fails."""
    statuses: Counter[int] = Counter()
    closed = 0

    async with running(tmp_path, "--leave-after", "1.5") as (gateway, _):
        leaving = asyncio.Event()

        async def client() -> None:
            nonlocal closed
            async with httpx.AsyncClient(base_url=gateway.url, timeout=ENOUGH_S) as http:
                last = False
                while not last:
                    last = leaving.is_set()
                    answer = await http.post(PATH, json=question("omni"))
                    statuses[answer.status_code] += 1
                    closed += answer.headers.get("connection") == "close"

        async with asyncio.TaskGroup() as group, httpx.AsyncClient() as prober:
            for _ in range(8):
                group.create_task(client())
            async with asyncio.timeout(ENOUGH_S):
                while statuses[200] < 20:  # noqa: ASYNC110 - counts what the clients get
                    await asyncio.sleep(0.002)
            gateway.terminate()
            async with asyncio.timeout(ENOUGH_S):
                while (await prober.get(gateway.url + "/readyz")).status_code == 200:  # noqa: ASYNC110 - as a kubelet asks
                    await asyncio.sleep(0.01)
            leaving.set()
        assert await asyncio.to_thread(gateway.wait) == 0
    assert statuses.keys() == {200}
    assert closed >= 8


@pytest.mark.parametrize("after", ["0", "0.2"])
async def test_what_is_in_flight_ends_well(tmp_path: Path, after: str) -> None:
    async with running(tmp_path, "--leave-after", after) as (gateway, replica):
        replica.answering.clear()
        async with httpx.AsyncClient(base_url=gateway.url, timeout=ENOUGH_S) as http:
            asked = asyncio.create_task(http.post(PATH, json=question("omni")))
            async with asyncio.timeout(ENOUGH_S):
                while not replica.asked:  # noqa: ASYNC110 - a replica tells nobody
                    await asyncio.sleep(0.002)
            gateway.terminate()
            async with asyncio.timeout(ENOUGH_S):
                while gateway.get("/healthz")[0] != 0:  # noqa: ASYNC110 - until nobody listens
                    await asyncio.sleep(0.01)
            replica.answering.set()
            answer = await asked

        assert answer.status_code == 200
        assert await asyncio.to_thread(gateway.wait) == 0
    last = json.loads(gateway.log.splitlines()[-1])
    assert (last["event"], last["left"]) == ("drained", 0)
