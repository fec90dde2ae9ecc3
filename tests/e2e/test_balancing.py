"""Two replicas of a stage: the one with the least work gets the next request."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from fakes.deployment import Deployment, within
from fakes.raw_client import PATH, RawClient, question

MODEL = "listening"
LONG = 100_000


class Crowd:
    """Clients that keep their requests running."""

    def __init__(self, deployment: Deployment, stack: ExitStack) -> None:
        self._deployment = deployment
        self._stack = stack
        self._count = 0

    def grow(self, count: int) -> None:
        """Adds requests; returns when all of them run."""
        for _ in range(count):
            client = self._stack.enter_context(RawClient(self._deployment.gateway.port))
            client.ask(question(MODEL, max_tokens=LONG, stream=True))
            assert client.read_head()[0] == 200
        self._count += count

    @property
    def shares(self) -> dict[str, int]:
        """How many run on each thinker."""
        return {
            name: replica.describe().occupancy.running
            for name, replica in self._deployment.replicas.items()
            if name.startswith("thinker")
        }


@contextmanager
def crowded(deployment: Deployment) -> Iterator[Crowd]:
    """A crowd that leaves in the end."""
    with ExitStack() as stack:
        yield Crowd(deployment, stack)
    assert within(1.0, lambda: deployment.idle)


@pytest.mark.parametrize("count", [2, 6])
def test_idle_replicas_share_what_comes(pair: Deployment, count: int) -> None:
    with crowded(pair) as crowd:
        crowd.grow(count)

        assert crowd.shares == {"thinker-0": count // 2, "thinker-1": count // 2}


def test_idle_replicas_take_turns(pair: Deployment) -> None:
    """One request at a time, so that each finds both replicas idle."""
    replicas = []
    for _ in range(6):
        answer = httpx.post(pair.gateway.url + PATH, json=question(MODEL, max_tokens=1))
        replicas.append(answer.json()["omnistage"]["stages"][0]["replica"])

    assert replicas[:2] * 3 == replicas
    assert len(set(replicas)) == 2


def test_a_replica_that_comes_back_catches_up(pair: Deployment) -> None:
    back = pair.replica("thinker-0")
    back.terminate()
    assert back.wait() == 0
    with crowded(pair) as crowd:
        crowd.grow(4)
        pair.revive("thinker-0")
        crowd.grow(6)

        assert crowd.shares == {"thinker-0": 5, "thinker-1": 5}
