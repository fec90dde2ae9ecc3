"""Clients that go away: within a second nothing of their requests is left anywhere.

The payloads are over 64 KiB, so that every hand-over goes through shared memory: the client's audio
from gateway to thinker, hidden states from thinker to speaker, speech from speaker to gateway.
"""

import asyncio
import base64
import io
import json
import random
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.deployment import Deploy, Deployment, Gateway, deployed, plan_from_text, within
from fakes.pipelines import listening_pipeline
from fakes.raw_client import PATH, RawClient, question
from omnistage_common.processes import resident_bytes

MODEL = "listening"
LONG = 100_000
REQUESTS = 200
AT_ONCE = 16
GROWTH = 8 * 1024 * 1024
"""Bytes that a process may have grown by after all of them."""


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    plan = plan_from_text(
        listening_pipeline(samples=65_536, rows=512, step_seconds=0.005, speaker_step_seconds=0.005)
    )
    with deployed(plan, tmp_path_factory.mktemp("slow")) as deployment:
        yield deployment


def recording() -> dict[str, Any]:
    """A message with a second of sound, which is 192 kB of samples."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 48_000, 0, "NONE", ""))
        sound.writeframes(bytes(96_000))
    data = base64.b64encode(file.getvalue()).decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    return {"role": "user", "content": [part]}


def nothing_left(deployment: Deployment, since: float) -> bool:
    """Whether gateway and stages let go of everything within a second of that time."""
    gateway = deployment.gateway
    return within(
        since + 1.0 - time.monotonic(),
        lambda: (
            deployment.idle
            and gateway.metric("omnistage_gateway_in_flight") == 0
            and gateway.metric("omnistage_gateway_outstanding") == 0
        ),
    )


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_client_that_hangs_up_takes_its_request_along(slow: Deployment, *, stream: bool) -> None:
    client = RawClient(slow.gateway.port)
    client.ask(question(MODEL, messages=[recording()], max_tokens=LONG, stream=stream))
    assert within(5, lambda: slow.held()["running"] == 1)
    if stream:
        assert client.read_head()[0] == 200

    gone = client.hang_up()

    assert nothing_left(slow, gone)


def ended(gateway: Gateway) -> float:
    """Requests that have ended, however they did."""
    return gateway.metric("omnistage_gateway_requests_total")


def test_a_client_that_hangs_up_at_once_does_too(slow: Deployment) -> None:
    before = ended(slow.gateway)
    client = RawClient(slow.gateway.port)
    client.ask(question(MODEL, max_tokens=LONG, stream=True))

    gone = client.hang_up()

    assert within(1.0, lambda: ended(slow.gateway) == before + 1)
    assert nothing_left(slow, gone)


def test_a_client_that_hangs_up_within_its_body_is_forgotten(slow: Deployment) -> None:
    client = RawClient(slow.gateway.port)
    client.send_head(Content_Length="1000")
    client.send(b'{"model":')
    assert within(5, lambda: slow.gateway.metric("omnistage_gateway_in_flight") == 1)

    gone = client.hang_up()

    assert nothing_left(slow, gone)


def test_a_client_that_never_reads_is_given_up_at_its_deadline(deploy: Deploy) -> None:
    """Its kernel takes a few kilobytes; the rest of ten megabytes has nowhere to go."""
    gateway = deploy(plan_from_text(listening_pipeline(samples=4_000_000))).gateway
    with RawClient(gateway.port, receive_buffer=4096) as client:
        body = question(MODEL, speak=True, max_tokens=2, stream=True)
        client.ask(body, X_Request_Timeout="1")

        assert within(5, lambda: ended(gateway) == 1)
        assert gateway.metric("omnistage_gateway_in_flight") == 0


class Held:
    """What a deployment has of everything that could leak."""

    def __init__(self, deployment: Deployment) -> None:
        self.segments = deployment.segments()
        self.tasks = {
            name: replica.describe().occupancy.tasks
            for name, replica in deployment.replicas.items()
        }
        services = deployment.services
        self.memory = {service.name: resident_bytes(service.pid) for service in services}
        self.descriptors = {
            service.name: len(list(Path(f"/proc/{service.pid}/fd").iterdir()))
            for service in services
        }


async def ask_and_leave(port: int, body: bytes, after: float) -> bool:
    """Hangs up after that many seconds; whether the answer was complete by then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    head = f"POST {PATH} HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
    complete = False
    try:
        async with asyncio.timeout(after):
            while await reader.read(65_536):
                pass
            complete = True
    except TimeoutError:
        pass
    writer.transport.abort()
    return complete


async def crowd(port: int, seed: int) -> int:
    """Many requests, each left at a random moment of its life; how many were answered before."""
    chance = random.Random(seed)  # noqa: S311 - reproducible
    places = asyncio.Semaphore(AT_ONCE)
    sound = recording()

    async def one(*, stream: bool, speak: bool, heard: bool, after: float) -> bool:
        fields = {"messages": [sound]} if heard else {}
        body = question(MODEL, speak=speak, stream=stream, max_tokens=16, **fields)
        async with places:
            return await ask_and_leave(port, json.dumps(body).encode(), after)

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                one(
                    stream=chance.random() < 0.5,
                    speak=chance.random() < 0.8,
                    heard=chance.random() < 0.5,
                    after=chance.uniform(0.0, 0.4),
                )
            )
            for _ in range(REQUESTS)
        ]
    return sum(task.result() for task in tasks)


async def test_a_crowd_that_leaves_at_random_moments_leaves_nothing(slow: Deployment) -> None:
    port = slow.gateway.port
    await crowd(port, seed=1)
    assert await asyncio.to_thread(nothing_left, slow, time.monotonic())
    before = Held(slow)

    answered = await crowd(port, seed=2)

    assert await asyncio.to_thread(nothing_left, slow, time.monotonic())
    after = Held(slow)
    assert answered < REQUESTS
    assert after.segments == before.segments
    assert after.tasks == before.tasks
    assert max(grown(before.descriptors, after.descriptors).values()) <= 2
    assert max(grown(before.memory, after.memory).values()) < GROWTH


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """By how much each number grew."""
    return {name: after[name] - before[name] for name in after}
