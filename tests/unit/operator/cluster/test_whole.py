"""All parts together: a small operator that gives every stage a config map, under every fault."""

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import psutil
import pytest
from prometheus_client import CollectorRegistry

from fakes.api_server import FakeApiServer
from fakes.controlled import key, running, until
from omnistage_common.cluster.api import Api
from omnistage_common.cluster.caches import Caches
from omnistage_common.cluster.connecting import Address, connect
from omnistage_common.cluster.fencing import Fence
from omnistage_common.cluster.informing import WatchTimings
from omnistage_common.cluster.kinds import CONFIG_MAPS, STAGES
from omnistage_common.cluster.manifests import Manifest, ObjectKey
from omnistage_common.cluster.rates import BackoffRule
from omnistage_operator.cluster.applying import Applier
from omnistage_operator.cluster.electing import Election
from omnistage_operator.control.controlling import DONE, Controller, Result, Source, owner_keys
from omnistage_operator.control.leadership import LeaseTimings
from omnistage_operator.control.metrics import OperatorMetrics
from omnistage_operator.control.queueing import QueueRates
from omnistage_operator.planning.plans import owner_reference

QUICK = QueueRates(backoff=BackoffRule(first_s=0.001, most_s=0.05), retries_per_s=1e6)
PATIENCE = WatchTimings(silence_s=0.3, backoff=BackoffRule(first_s=0.001, most_s=0.05))
TIMINGS = LeaseTimings(lease_s=1.0, renew_s=0.5, retry_s=0.05)


class SmallOperator:
    """Each stage gets a config map with its spec, and a status that says so."""

    def __init__(self, api: Api) -> None:
        self._registry = CollectorRegistry()
        self.metrics = OperatorMetrics(self._registry)
        self.caches = Caches(api, metrics=self.metrics.cluster, timings=PATIENCE)
        self._stages = self.caches.watch(STAGES)
        self._children = self.caches.watch(CONFIG_MAPS)
        self._applier = Applier(api=api, caches=self.caches, metrics=self.metrics)
        self.controller = Controller(
            name="small",
            reconcile=self._reconcile,
            primary=self._stages,
            sources=[Source(self._children, owner_keys(STAGES))],
            metrics=self.metrics.controller("small"),
            rates=QUICK,
        )

    def reconciled(self) -> float:
        """Reconciles that ended well."""
        labels = {"controller": "small", "result": "success"}
        return self._registry.get_sample_value("omnistage_operator_reconcile_total", labels) or 0.0

    async def lead(self) -> None:
        """What only the leader does."""
        await self.caches.wait_synced()
        await self.controller.run()

    def intents(self, stage: Manifest) -> list[Manifest]:
        """What a stage should have."""
        return [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": f"{stage['metadata']['name']}-{revision}",
                    "namespace": stage["metadata"]["namespace"],
                    "ownerReferences": [owner_reference(stage)],
                },
                "data": {"revision": revision},
            }
            for revision in stage["spec"]["revisions"]
        ]

    async def _reconcile(self, found: ObjectKey) -> Result:
        stage = self._stages.store.get(found)
        if stage is None:
            return DONE
        intents = self.intents(stage)
        await self._applier.apply_all(intents)
        await self._applier.prune(stage, keep=intents, kinds=[CONFIG_MAPS])
        status = {
            "observedGeneration": stage["metadata"]["generation"],
            "revisions": [{"revision": name} for name in stage["spec"]["revisions"]],
        }
        await self._applier.write_status(stage, status)
        return DONE


def stage(name: str, *revisions: str) -> Manifest:
    """A stage with these revisions."""
    return {
        "apiVersion": STAGES.api_version,
        "kind": "Stage",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"revisions": list(revisions)},
    }


def converged(server: FakeApiServer) -> bool:
    """Every stage has what it should have, and says so; nothing else is there."""
    wanted = {
        f"{found['metadata']['name']}-{revision}"
        for found in server.all(STAGES)
        for revision in found["spec"]["revisions"]
    }
    told = all(
        found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
        for found in server.all(STAGES)
    )
    return told and wanted == {found["metadata"]["name"] for found in server.all(CONFIG_MAPS)}


@asynccontextmanager
async def operating(api: Api) -> AsyncIterator[SmallOperator]:
    """A small operator at work."""
    operator = SmallOperator(api)
    async with running(operator.caches.run(), operator.lead()):
        yield operator


async def test_stages_come_change_and_go(server: FakeApiServer, api: Api) -> None:
    server.put(stage("thinker", "a"))
    async with operating(api):
        await until(lambda: converged(server))
        server.put(stage("thinker", "a", "b"))
        server.put(stage("talker", "a"))
        await until(lambda: converged(server) and len(server.all(CONFIG_MAPS)) == 3)
        server.put(stage("thinker", "b"))
        await until(lambda: converged(server) and len(server.all(CONFIG_MAPS)) == 2)
        server.remove(STAGES, key("thinker"))
        server.remove(STAGES, key("talker"))
        await until(lambda: server.all(CONFIG_MAPS) == [])


async def test_a_thousand_stages_idle_and_restarted_cost_no_write(
    server: FakeApiServer, api: Api
) -> None:
    before = psutil.Process().memory_info().rss
    for number in range(1000):
        server.put(stage(f"s{number}", "a"))
    async with operating(api) as operator:
        await until(lambda: server.requests["patch", "stages/status"] == 1000, within_s=60)
        await until(lambda: operator.controller.is_idle)
        assert converged(server)
        settled = server.writes()
        operator.controller.enqueue_all()
        await until(lambda: operator.controller.is_idle)
        assert server.writes() == settled

    async with operating(api) as operator:
        await until(lambda: operator.reconciled() == 1000)

    assert server.writes() == settled == 2000
    assert psutil.Process().memory_info().rss - before < 200 * 2**20


def storms(server: FakeApiServer) -> list[Callable[[], object]]:
    """What may happen at any moment."""
    return [
        server.cut_watches,
        server.expire_watches,
        server.compact,
        lambda: server.faults.fail_next(409, times=3, verb="patch"),
        lambda: server.faults.fail_next(429, times=5),
        lambda: server.faults.fail_next(500, times=5),
        lambda: server.faults.fail_next(503, times=2, verb="patch", after_write=True),
        lambda: server.faults.fail_next(410, times=2, verb="list"),
        lambda: server.faults.fail_next(404, times=2, verb="patch"),
        lambda: server.rotate_token(f"token-{random.random()}"),  # noqa: S311
        lambda: setattr(server.faults, "frozen", True),
        lambda: setattr(server.faults, "frozen", False),
    ]


@pytest.mark.parametrize("seed", range(3))
async def test_after_every_storm_the_world_is_as_it_should_be(
    server: FakeApiServer, api: Api, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311
    async with operating(api):
        for _ in range(150):
            chance.choice(storms(server))()
            name = f"s{chance.randrange(10)}"
            if chance.random() < 0.2 and server.get(STAGES, key(name)) is not None:
                server.remove(STAGES, key(name))
            else:
                server.put(stage(name, *chance.sample("abc", chance.randrange(1, 4))))
            await asyncio.sleep(chance.random() * 0.01)
        server.faults.heal()

        await until(lambda: converged(server))


async def test_two_operators_one_leads_and_the_other_goes_on_where_it_ended(
    server: FakeApiServer, metrics: OperatorMetrics
) -> None:
    @asynccontextmanager
    async def process(name: str) -> AsyncIterator[None]:
        async with connect(Address(kubeconfig=server.kubeconfig)) as connection:
            fence = Fence()
            api = Api(
                connection, field_manager="operator", fence=fence, metrics=metrics.cluster.api()
            )
            operator = SmallOperator(api)
            election = Election(
                api=api, lease=key("operator"), identity=name, fence=fence, timings=TIMINGS
            )
            async with running(operator.caches.run(), election.run(operator.lead)):
                yield

    for number in range(50):
        server.put(stage(f"s{number}", "a"))
    async with process("second"):
        async with process("first"):
            await until(lambda: server.writes() > 20)
        server.put(stage("s0", "a", "b"))
        await until(lambda: converged(server))

    assert server.requests["patch", "configmaps"] <= 55


def test_an_operator_that_has_nothing_to_do_is_small() -> None:
    script = (
        "import omnistage_common.cluster.caches, omnistage_operator.cluster.electing,"
        "omnistage_operator.cluster.applying, omnistage_operator.cluster.recording,"
        "omnistage_common.cluster.connecting, omnistage_operator.control.controlling, psutil;"
        "print(psutil.Process().memory_info().rss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )

    assert int(done.stdout) < 100 * 2**20
