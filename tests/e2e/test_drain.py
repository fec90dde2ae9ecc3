"""Processes that go, asked or not, while requests run: who is served to the end, and who is not."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from fakes.deployment import Deploy, Deployment, plan_from_text, within
from fakes.pipelines import listening_pipeline
from fakes.raw_client import PATH, RawClient, question

MODEL = "listening"
CLIENTS = 8
THINKERS = ("thinker-0", "thinker-1")


def test_a_gateway_that_is_told_to_go_ends_its_streams_first(deploy: Deploy) -> None:
    deployment = deploy(plan_from_text(listening_pipeline(step_seconds=0.02)))
    gateway = deployment.gateway
    with RawClient(gateway.port) as client:
        client.ask(question(MODEL, speak=True, stream=True, max_tokens=20))
        assert client.read_head()[0] == 200

        gateway.terminate()

        assert within(5, lambda: gateway.get("/readyz")[0] in {0, 503})
        assert client.read_rest().endswith(b"data: [DONE]\n\n")
    assert gateway.wait() == 0
    assert gateway.segments() == []


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_stage_that_is_told_to_go_ends_its_requests_first(
    pair: Deployment, *, stream: bool
) -> None:
    with RawClient(pair.gateway.port) as client:
        client.ask(question(MODEL, stream=stream, max_tokens=40))
        assert within(5, lambda: pair.held()["running"] == 1)
        (name,) = [name for name in THINKERS if pair.replica(name).describe().occupancy.running]
        going = pair.replica(name)

        going.terminate()

        status, headers = client.read_head()
        body = client.read_rest() if stream else client.read_body(headers)
    assert status == 200
    assert body.count(b"word") >= 1
    assert b'"finish_reason":"length"' in body
    assert going.wait() == 0
    assert going.segments() == []
    pair.revive(name)


@asynccontextmanager
async def load(deployment: Deployment) -> AsyncIterator[Counter[int]]:
    """Clients that ask one short question after the other, meanwhile; statuses of the answers."""
    statuses: Counter[int] = Counter()
    over = threading.Event()
    url = deployment.gateway.url + PATH

    async def client() -> None:
        async with httpx.AsyncClient(timeout=20) as http:
            while not over.is_set():
                answer = await http.post(url, json=question(MODEL, speak=True, max_tokens=1))
                statuses[answer.status_code] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client())
        yield statuses
        over.set()


def wait_for_answers(statuses: Counter[int], count: int) -> None:
    """Returns when that many more requests have been answered well."""
    wanted = statuses[200] + count
    assert within(10, lambda: statuses[200] >= wanted)


async def test_a_replica_that_goes_under_load_fails_nobody(pair: Deployment) -> None:
    """Again and again, so that it is told at any moment of a request's life."""
    async with load(pair) as statuses:
        for name in (*THINKERS, *THINKERS):
            going = pair.replica(name)
            await asyncio.to_thread(wait_for_answers, statuses, 20)

            going.terminate()

            assert await asyncio.to_thread(going.wait) == 0
            await asyncio.to_thread(pair.revive, name)
    assert statuses.keys() == {200}


async def test_a_replica_that_dies_takes_only_its_own_requests(pair: Deployment) -> None:
    url = pair.gateway.url + PATH
    async with httpx.AsyncClient(timeout=20) as http, asyncio.TaskGroup() as group:
        asked = [
            group.create_task(http.post(url, json=question(MODEL, max_tokens=200)))
            for _ in range(2 * CLIENTS)
        ]
        everybody = {"running": 2 * CLIENTS}
        assert await asyncio.to_thread(within, 5, lambda: pair.held() | everybody == pair.held())
        dying = pair.replica("thinker-0")
        lost = dying.describe().occupancy.running

        await asyncio.to_thread(dying.kill)

        after = await http.post(url, json=question(MODEL, max_tokens=1))
    statuses = Counter(task.result().status_code for task in asked)
    assert statuses == {503: lost, 200: 2 * CLIENTS - lost}
    assert after.status_code == 200
    await asyncio.to_thread(pair.revive, "thinker-0")


def test_a_replica_that_freezes_is_noticed_by_its_silence(pair: Deployment) -> None:
    """Its sockets stay open; only the pings that it does not answer tell."""
    gateway = pair.gateway
    with RawClient(gateway.port) as client:
        client.ask(question(MODEL, stream=True, max_tokens=100_000))
        assert client.read_head()[0] == 200
        (name,) = [name for name in THINKERS if pair.replica(name).describe().occupancy.running]
        found = gateway.times_found(name)

        pair.replica(name).freeze()

        rest = client.read_rest()
        assert b'"code":"stage_unavailable"' in rest
        assert b"[DONE]" not in rest
    answers = [httpx.post(gateway.url + PATH, json=question(MODEL, max_tokens=1)) for _ in range(4)]
    assert {answer.status_code for answer in answers} == {200}
    pair.replica(name).thaw()
    gateway.wait_found(name, found + 1)
    assert within(5, lambda: pair.idle)
