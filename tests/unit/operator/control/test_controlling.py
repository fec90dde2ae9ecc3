"""Workers and keys: what a reconcile may do and what becomes of it."""

import asyncio
from collections import Counter
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from fakes.controlled import config_map, key, pod, running, until
from omnistage_common.cluster.errors import ApiUnavailable, WriteConflict, WriteFenced
from omnistage_common.cluster.kinds import CONFIG_MAPS, PODS, ResourceKind
from omnistage_common.cluster.manifests import Manifest, ObjectKey
from omnistage_common.cluster.rates import BackoffRule
from omnistage_common.cluster.store import Store
from omnistage_common.cluster.watched import Listener
from omnistage_common.errors import InvalidPipeline
from omnistage_operator.control.controlling import (
    DONE,
    Controller,
    Reconcile,
    Result,
    Source,
    owner_keys,
)
from omnistage_operator.control.metrics import OperatorMetrics
from omnistage_operator.control.queueing import QueueRates

QUICK = QueueRates(backoff=BackoffRule(first_s=0.002, most_s=0.01), retries_per_s=1e6)


class Kept:
    """A kind that a test keeps by hand."""

    def __init__(self, kind: ResourceKind) -> None:
        self.kind = kind
        self.store = Store()
        self._listeners: list[Listener] = []

    def on_change(self, listener: Listener) -> None:
        """Tells this listener."""
        self._listeners.append(listener)

    def put(self, manifest: Manifest) -> None:
        """An object is in this state."""
        change = self.store.put(manifest)
        assert change is not None
        for listener in self._listeners:
            listener(*change)

    def remove(self, manifest: Manifest) -> None:
        """An object is gone."""
        change = self.store.remove(manifest)
        assert change is not None
        for listener in self._listeners:
            listener(*change)


class Worked:
    """A reconcile that counts, and does what the test says."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()
        self.act: Callable[[ObjectKey], Result] = lambda _: DONE

    async def __call__(self, found: ObjectKey) -> Result:
        """One reconcile."""
        self.times[found.name] += 1
        return self.act(found)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def maps() -> Kept:
    return Kept(CONFIG_MAPS)


@pytest.fixture
def pods() -> Kept:
    return Kept(PODS)


@pytest.fixture
def worked() -> Worked:
    return Worked()


@pytest.fixture
def make(maps: Kept, pods: Kept, registry: CollectorRegistry) -> Callable[[Reconcile], Controller]:
    def make(reconcile: Reconcile) -> Controller:
        return Controller(
            name="test",
            reconcile=reconcile,
            primary=maps,
            sources=[Source(pods, owner_keys(CONFIG_MAPS))],
            metrics=OperatorMetrics(registry).controller("test"),
            workers=3,
            rates=QUICK,
        )

    return make


@pytest.fixture
def controller(make: Callable[[Reconcile], Controller], worked: Worked) -> Controller:
    return make(worked)


def results(registry: CollectorRegistry, result: str) -> float:
    """How many reconciles ended so."""
    labels = {"controller": "test", "result": result}
    return registry.get_sample_value("omnistage_operator_reconcile_total", labels) or 0


async def test_it_begins_with_everything_that_is_there(
    controller: Controller, maps: Kept, worked: Worked
) -> None:
    for number in range(10):
        maps.put(config_map(f"m{number}"))

    async with running(controller.run()):
        await until(lambda: len(worked.times) == 10)
        await until(lambda: controller.is_idle)

    assert set(worked.times.values()) == {1}


async def test_changes_of_the_object_and_of_what_it_owns_wake_it(
    controller: Controller, maps: Kept, pods: Kept, worked: Worked
) -> None:
    owner = config_map("owner")
    owner["metadata"]["uid"] = "u"
    async with running(controller.run()):
        maps.put(owner)
        await until(lambda: worked.times["owner"] == 1)
        child = pod("child", owner=owner)
        pods.put(child)
        await until(lambda: worked.times["owner"] == 2)
        pods.remove(child)
        await until(lambda: worked.times["owner"] == 3)
        pods.put(pod("stranger"))
        maps.remove(owner)
        await until(lambda: worked.times["owner"] == 4)

    assert set(worked.times) == {"owner"}


async def test_a_failure_is_logged_counted_and_tried_again(
    controller: Controller, maps: Kept, worked: Worked, registry: CollectorRegistry
) -> None:
    maps.put(config_map("one"))
    maps.put(config_map("other"))

    def act(found: ObjectKey) -> Result:
        if found.name == "one" and worked.times["one"] < 4:
            raise ApiUnavailable("the server is gone")
        if found.name == "other" and worked.times["other"] < 3:
            raise ZeroDivisionError
        return DONE

    worked.act = act
    with capture_logs() as logs:
        async with running(controller.run()):
            await until(lambda: results(registry, "success") == 2)

    assert worked.times == {"one": 4, "other": 3}
    assert results(registry, "error") == 5
    failures = {log["event"] for log in logs if log["log_level"] != "info"}
    assert failures == {"reconcile failed", "reconcile broke"}
    assert {log["key"] for log in logs if "key" in log} == {"default/one", "default/other"}


async def test_a_failure_that_names_a_pause_waits_for_it(
    controller: Controller, maps: Kept, worked: Worked
) -> None:
    maps.put(config_map("one"))
    clock = asyncio.get_running_loop().time
    at: list[float] = []

    def act(_: ObjectKey) -> Result:
        at.append(clock())
        if len(at) == 1:
            raise ApiUnavailable("busy", retry_after=0.1)
        return DONE

    worked.act = act
    async with running(controller.run()):
        await until(lambda: len(at) == 2)

    assert at[1] - at[0] >= 0.1


async def test_one_broken_object_does_not_hold_up_the_others(
    controller: Controller, maps: Kept, worked: Worked
) -> None:
    def act(found: ObjectKey) -> Result:
        if found.name == "broken":
            raise InvalidPipeline("always")
        return DONE

    worked.act = act
    maps.put(config_map("broken"))
    async with running(controller.run()):
        for number in range(50):
            maps.put(config_map(f"m{number}"))
        await until(lambda: sum(worked.times[f"m{n}"] for n in range(50)) == 50)
        await until(lambda: worked.times["broken"] > 3)


async def test_a_conflict_is_tried_again_at_once_and_then_with_a_pause(
    controller: Controller, maps: Kept, worked: Worked, registry: CollectorRegistry
) -> None:
    maps.put(config_map("one"))

    def act(_: ObjectKey) -> Result:
        if worked.times["one"] < 4:
            raise WriteConflict("somebody was faster")
        return DONE

    worked.act = act
    async with running(controller.run()):
        await until(lambda: results(registry, "success") == 1)

    assert results(registry, "conflict") == 3
    assert results(registry, "error") == 0


async def test_losing_the_lease_is_no_failure(
    controller: Controller, maps: Kept, worked: Worked, registry: CollectorRegistry
) -> None:
    maps.put(config_map("one"))

    def act(_: ObjectKey) -> Result:
        raise WriteFenced("not leading")

    worked.act = act
    async with running(controller.run()):
        await until(lambda: results(registry, "fenced") == 1)
        await asyncio.sleep(0.02)

    assert worked.times["one"] == 1


async def test_a_reconcile_may_ask_to_be_called_later(
    controller: Controller, maps: Kept, worked: Worked
) -> None:
    maps.put(config_map("one"))
    worked.act = lambda _: Result(requeue_after=0.002) if worked.times["one"] < 3 else DONE

    async with running(controller.run()):
        await until(lambda: worked.times["one"] == 3)
        await until(lambda: controller.is_idle)


async def test_a_key_is_worked_on_by_one_worker_and_others_beside_it(
    make: Callable[[Reconcile], Controller], maps: Kept
) -> None:
    at_work: Counter[str] = Counter()
    most = {"one": 0, "all": 0}

    async def reconcile(found: ObjectKey) -> Result:
        at_work[found.name] += 1
        most["one"] = max(most["one"], at_work[found.name])
        most["all"] = max(most["all"], at_work.total())
        await asyncio.sleep(0.001)
        at_work[found.name] -= 1
        return DONE

    controller = make(reconcile)
    for name in ("a", "b", "c", "d"):
        maps.put(config_map(name))
    async with running(controller.run()):
        for _ in range(20):
            controller.enqueue_all()
            await asyncio.sleep(0.0005)
        await until(lambda: controller.is_idle)

    assert most == {"one": 1, "all": 3}


async def test_the_end_stops_work_in_progress_and_leaves_no_task(
    make: Callable[[Reconcile], Controller], maps: Kept
) -> None:
    stopped = asyncio.Event()

    async def reconcile(_: ObjectKey) -> Result:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return DONE

    before = asyncio.all_tasks()
    maps.put(config_map("one"))
    controller = make(reconcile)
    async with running(controller.run()):
        await until(lambda: not controller.is_idle)

    assert stopped.is_set()
    assert asyncio.all_tasks() <= before


async def test_changes_while_it_does_not_run_are_found_when_it_does(
    controller: Controller, maps: Kept, worked: Worked
) -> None:
    async with running(controller.run()):
        maps.put(config_map("one"))
        await until(lambda: worked.times["one"] == 1)
    controller.enqueue(key("one"))
    maps.put(config_map("two"))

    async with running(controller.run()):
        await until(lambda: worked.times["one"] == 2 and worked.times["two"] == 1)


async def test_a_thousand_objects_are_worked_on_once_each(
    controller: Controller, maps: Kept, worked: Worked
) -> None:
    for number in range(1000):
        maps.put(config_map(f"m{number}"))

    async with running(controller.run()):
        await until(lambda: controller.is_idle and len(worked.times) == 1000)

    assert set(worked.times.values()) == {1}


def looks(logs: list[MutableMapping[str, Any]]) -> list[int]:
    """How many objects were looked at, for each time that this was told."""
    return [each["objects"] for each in logs if each["event"] == "looked at everything"]


async def test_it_tells_once_when_it_has_looked_at_everything_that_was_there(
    make: Callable[[Reconcile], Controller], maps: Kept
) -> None:
    for number in range(5):
        maps.put(config_map(f"m{number}"))
    worked = Worked()

    def fail_on_one(found: ObjectKey) -> Result:
        if found.name == "m3" and worked.times["m3"] == 1:
            raise ApiUnavailable("away")
        return DONE

    worked.act = fail_on_one
    with capture_logs() as logs:
        async with running(make(worked).run()):
            await until(lambda: worked.times["m3"] == 2)
            maps.put(config_map("later"))
            await until(lambda: worked.times["later"] == 1)

    assert looks(logs) == [5]


async def test_it_has_looked_at_everything_at_once_where_there_is_nothing(
    controller: Controller,
) -> None:
    with capture_logs() as logs:
        async with running(controller.run()):
            await until(lambda: looks(logs))

    assert looks(logs) == [0]


def settling(maps: Kept, pods: Kept, worked: Worked, settle_s: float) -> Controller:
    """A controller that waits a moment for what nobody wrote by hand."""
    return Controller(
        name="settling",
        reconcile=worked,
        primary=maps,
        sources=[Source(pods, owner_keys(CONFIG_MAPS))],
        metrics=OperatorMetrics(CollectorRegistry()).controller("settling"),
        settle_s=settle_s,
    )


async def test_a_burst_of_changes_is_looked_at_once(maps: Kept, pods: Kept, worked: Worked) -> None:
    owner = config_map("owner")
    owner["metadata"]["uid"] = "u"
    controller = settling(maps, pods, worked, settle_s=0.05)
    async with running(controller.run()):
        maps.put(owner)
        await until(lambda: worked.times["owner"] == 1)

        for number in range(20):
            pods.put(pod(f"p{number}", owner=owner))
            await asyncio.sleep(0)

        assert worked.times["owner"] == 1
        await until(lambda: worked.times["owner"] == 2)
        await until(lambda: controller.is_idle)

    assert worked.times["owner"] == 2


async def test_what_people_write_is_looked_at_now(maps: Kept, pods: Kept, worked: Worked) -> None:
    """Nothing that settles is looked at within this test."""

    def state(version: int, **metadata: Any) -> Manifest:
        made = config_map("a")
        made["metadata"] |= {"resourceVersion": str(version), **metadata}
        return made

    async with running(settling(maps, pods, worked, settle_s=3600.0).run()):
        maps.put(state(1, generation=1))
        await until(lambda: worked.times["a"] == 1)
        maps.put(state(2, generation=1))
        maps.put(state(3, generation=2))
        await until(lambda: worked.times["a"] == 2)
        maps.put(state(4, generation=2, deletionTimestamp="2026-12-01T00:00:00Z"))
        await until(lambda: worked.times["a"] == 3)
        maps.remove(state(5, generation=2))
        await until(lambda: worked.times["a"] == 4)
