"""One leader, a fence that closes by itself, and a lease that is given back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from fakes.api_server import FakeApiServer
from fakes.controlled import config_map, key, running, until
from omnistage_common.cluster.api import Api
from omnistage_common.cluster.connecting import Address, Connection, Request, connect
from omnistage_common.cluster.errors import WriteFenced
from omnistage_common.cluster.fencing import Fence
from omnistage_common.cluster.kinds import CONFIG_MAPS, LEASES
from omnistage_operator.cluster.electing import Election
from omnistage_operator.control.leadership import LeaseTimings
from omnistage_operator.control.metrics import OperatorMetrics

TIMINGS = LeaseTimings(lease_s=1.0, renew_s=0.4, retry_s=0.05)
LEASE = key("operator", "omnistage")


class Way:
    """A connection that one process can lose while others keep theirs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.is_cut = False

    async def send(self, request: Request) -> bytes:
        """Sends it, or hangs."""
        if self.is_cut:
            await asyncio.Event().wait()
        return await self._connection.send(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Opens it."""
        return self._connection.stream(request)


class Candidate:
    """A process that wants to lead, with a connection of its own."""

    def __init__(self, way: Way, metrics: OperatorMetrics, name: str) -> None:
        self.way = way
        self.fence = Fence()
        self.api = Api(way, field_manager=name, fence=self.fence, metrics=metrics.cluster.api())
        self.election = Election(
            api=self.api, lease=LEASE, identity=name, fence=self.fence, timings=TIMINGS
        )
        self.terms = 0
        self.leading = asyncio.Event()
        self.stepped_down = asyncio.Event()

    async def lead(self) -> None:
        """What only a leader does: here nothing, until it must stop."""
        self.terms += 1
        self.stepped_down.clear()
        self.leading.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.leading.clear()
            self.stepped_down.set()

    async def run(self) -> None:
        """Campaigns and leads."""
        await self.election.run(self.lead)


@asynccontextmanager
async def candidate(
    server: FakeApiServer, metrics: OperatorMetrics, name: str
) -> AsyncIterator[Candidate]:
    async with connect(Address(kubeconfig=server.kubeconfig)) as connection:
        yield Candidate(Way(connection), metrics, name)


@pytest.fixture
async def first(server: FakeApiServer, metrics: OperatorMetrics) -> AsyncIterator[Candidate]:
    async with candidate(server, metrics, "first") as made:
        yield made


@pytest.fixture
async def second(server: FakeApiServer, metrics: OperatorMetrics) -> AsyncIterator[Candidate]:
    async with candidate(server, metrics, "second") as made:
        yield made


def holder(server: FakeApiServer) -> str:
    """Who holds the lease."""
    return str(
        (server.get(LEASES, LEASE) or {"spec": {"holderIdentity": ""}})["spec"]["holderIdentity"]
    )


async def test_the_lease_goes_with_its_owner(
    server: FakeApiServer, metrics: OperatorMetrics
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "name": "operator", "uid": "u-1"}
    async with connect(Address(kubeconfig=server.kubeconfig)) as connection:
        election = Election(
            api=Api(connection, field_manager="x", fence=Fence(), metrics=metrics.cluster.api()),
            lease=LEASE,
            identity="first",
            fence=Fence(),
            owner=account,
        )
        led = asyncio.Event()

        async def lead() -> None:
            led.set()

        await election.run(lead)

    assert led.is_set()
    assert server.need(LEASES, LEASE)["metadata"]["ownerReferences"] == [account]


async def test_the_only_candidate_leads_and_may_write(
    server: FakeApiServer, first: Candidate
) -> None:
    with pytest.raises(WriteFenced):
        await first.api.apply(config_map("one"), CONFIG_MAPS)

    async with running(first.run()):
        await first.leading.wait()
        await first.api.apply(config_map("one"), CONFIG_MAPS)
        renewed = server.need(LEASES, LEASE)["spec"]["renewTime"]
        await until(lambda: server.need(LEASES, LEASE)["spec"]["renewTime"] != renewed)

    spec = server.need(LEASES, LEASE)["spec"]
    assert spec["acquireTime"] < spec["renewTime"]
    assert server.get(CONFIG_MAPS, key("one")) is not None


async def test_one_leads_and_the_other_waits(first: Candidate, second: Candidate) -> None:
    async with running(first.run(), second.run()):
        await until(lambda: first.leading.is_set() or second.leading.is_set())
        for _ in range(30):
            assert first.leading.is_set() != second.leading.is_set()
            assert first.fence.is_open != second.fence.is_open
            await asyncio.sleep(0.05)

    assert first.terms + second.terms == 1


async def test_a_leader_that_ends_gives_the_lease_back_and_the_next_starts_at_once(
    server: FakeApiServer, first: Candidate, second: Candidate
) -> None:
    async with running(second_later(first, second)):
        async with running(first.run()):
            await first.leading.wait()
        assert first.stepped_down.is_set()
        assert not first.fence.is_open
        assert holder(server) in {"", "second"}
        async with asyncio.timeout(TIMINGS.lease_s / 2):
            await second.leading.wait()
        assert server.need(LEASES, LEASE)["spec"]["leaseTransitions"] == 1


async def second_later(first: Candidate, second: Candidate) -> None:
    """The second campaigns once the first leads."""
    await first.leading.wait()
    await second.run()


async def test_a_leader_that_cannot_renew_is_fenced_before_another_leads(
    server: FakeApiServer, first: Candidate, second: Candidate
) -> None:
    async with running(first.run(), second_later(first, second)):
        await first.leading.wait()
        first.way.is_cut = True

        await until(lambda: not first.fence.is_open)
        assert not second.leading.is_set()
        with pytest.raises(WriteFenced):
            await first.api.apply(config_map("late"), CONFIG_MAPS)
        await first.stepped_down.wait()
        await second.leading.wait()
        first.way.is_cut = False

    assert server.get(CONFIG_MAPS, key("late")) is None


async def test_a_leader_whose_lease_was_taken_stops_at_once(
    server: FakeApiServer, first: Candidate
) -> None:
    async with running(first.run()):
        await first.leading.wait()
        spec = server.need(LEASES, LEASE)["spec"]
        server.patch(LEASES, LEASE, spec={**spec, "holderIdentity": "thief"})

        await first.stepped_down.wait()

        assert not first.fence.is_open
        assert holder(server) == "thief"


async def test_a_short_outage_of_the_server_costs_no_leadership(
    server: FakeApiServer, first: Candidate
) -> None:
    async with running(first.run()):
        await first.leading.wait()
        server.faults.fail_next(503, times=3, resource="leases")
        await until(lambda: not any(r.times for r in server.faults.refusals))
        renewed = server.need(LEASES, LEASE)["spec"]["renewTime"]
        await until(lambda: server.need(LEASES, LEASE)["spec"]["renewTime"] != renewed)

        assert first.leading.is_set()
        assert first.terms == 1


async def test_a_long_outage_ends_the_term_and_the_next_begins_after_it(
    server: FakeApiServer, first: Candidate
) -> None:
    async with running(first.run()):
        await first.leading.wait()
        server.faults.fail_next(503, times=1_000_000, resource="leases")
        await first.stepped_down.wait()
        assert not first.fence.is_open

        server.faults.heal()
        await first.leading.wait()

        assert first.terms == 2


async def test_a_server_that_hangs_does_not_hold_the_fence_open(
    server: FakeApiServer, first: Candidate
) -> None:
    async with running(first.run()):
        await first.leading.wait()
        held = server.faults.hold()
        await until(lambda: not first.fence.is_open, within_s=TIMINGS.renew_s * 4)
        await first.stepped_down.wait()
        held.set()


async def test_work_that_ends_gives_the_lease_back(server: FakeApiServer, first: Candidate) -> None:
    async def once() -> None:
        await first.api.apply(config_map("one"), CONFIG_MAPS)

    await first.election.run(once)

    assert holder(server) == ""
    assert not first.fence.is_open


async def test_work_that_breaks_gives_the_lease_back(
    server: FakeApiServer, first: Candidate
) -> None:
    async def breaks() -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        await first.election.run(breaks)

    assert caught.group_contains(ZeroDivisionError)
    assert holder(server) == ""
